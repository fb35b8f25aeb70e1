"""The live page of the building: `fedfilt dashboard`. It follows runs by their folders and never touches a model.

`watch` knows the runs, `control` stops and resumes them, `page` says what is shown, `app` reacts to the reader,
`server` decides who may look.
"""
