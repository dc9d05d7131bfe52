"""The tables of docs/performance.md and docs/reliability.md, written from what the benches and the fault suite found.

A page holds markers, and between a marker and its `<!-- end -->` what `python -m bench.pages` writes there:

    <!-- figures router case="serial*" metric="added*" system=octet|litellm -->   a table of bench/results/router.json
    <!-- origin router -->                                                        when, where and by which command
    <!-- notes router -->                                                         what the bench had to say
    <!-- faults -->                                                               the fault rows with their figures

Nobody types a figure into a page by hand: `--check` fails where a page differs from the results.
"""
