"""A live planner in the browser, with no server: the package itself runs there, in WebAssembly.

    answers     what the page asks and gets: a job's sections, advice, the largest batch; plain JSON
    site        a static folder with the page, this package and what it needs, and Pyodide
    server      that folder on localhost

In the browser `worker.js` loads Pyodide and the packages, and hands each question to `answers`.
`planner.js` asks as the sliders move: never more than one question at a time waits, the newest.
"""
