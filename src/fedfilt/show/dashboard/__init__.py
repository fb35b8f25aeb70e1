"""The live page of the building: `fedfilt dashboard`. It follows runs through their folders and never touches a model.

`folders` knows the runs, `steering` stops and resumes them, `page` decides what to show, `app` reacts to the reader,
`home` is the page of a living home, `server` decides who may look.
"""
