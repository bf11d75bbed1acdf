"""Videos that are made while nobody waits for them: `/v1/videos` in the shape of OpenAI's Videos API (docs/jobs.md).

api.py     the routes; messages.py what they answer
body.py    the fields of a request; fields.py what they may be; uploads.py its picture or clip
work.py    what a model is asked to do for it
store.py   jobs in SQLite and files, which outlive the server
runner.py  one job of each model at a time, beside those who play
"""
