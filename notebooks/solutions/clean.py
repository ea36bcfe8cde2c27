"""Notebook 10: a file may go when no retained commit is older than the commit that replaced it."""


def clean(commits, retained):
    oldest = len(commits) - retained
    return {
        file
        for number, (_, replaced) in enumerate(commits)
        if number <= oldest
        for file in replaced
    }
