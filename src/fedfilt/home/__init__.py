"""The living home: devices decide on what they sense, rooms vote, people correct, and what they say becomes data.

`topics` is what travels, `bus` how (in this process, or over MQTT), `clock` the time of the home, which a replay may
let run faster.
"""
