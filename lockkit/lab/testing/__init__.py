"""Lost responses in any project's tests: a pytest plugin (`lockkit.lab.testing.plugin`).

pytest loads `plugin` at each start, so that module imports nothing but pytest; the rest is loaded
by the first test that uses it. `cases` names the cases, `faulty` strikes one of them, `runner`
runs a test once for each, `bucket` is where, and `report` draws what happened.
"""
