"""Group commit: writers offer their commits, and one replacement of the fence decides for all.

Start with `decision` (pure). Its procedures: `client` (what a client knows), `view` (what the fence
and a listing say), `outcomes` (publish), `combine` (decide), `offer` (wait for a decision), and
`commit`, which calls them all. `publish` runs them for a table.
"""
