"""Adds up reports of schemathesis. The last line is `N passed, N failed`; ends with 1 if any failed.

    count.py APART REPORT...

Every operation that a run selected must have been tested, but by chance, and every
operation of the document must have been selected by some run, but the APART that are left out on
purpose. What is missing counts as failed.
"""

import json
import sys

apart = int(sys.argv[1])
sent = failed = broken = missing = 0
tested, total = {}, 0
for path in sys.argv[2:]:
    try:
        with open(path) as file:
            report = json.load(file)
    except (OSError, ValueError) as why:
        print(f"no report was written: {why}; see target/fuzz/run.log", file=sys.stderr)
        sys.exit(1)
    cases = report["test_cases"]
    sent += cases["generated"]
    failed += len(report["failures"])
    broken += len(report["errors"])
    for failure in report["failures"] + report["errors"]:
        print(json.dumps(failure)[:2000])

    operations = report["operations"]
    tested[path], total = operations["tested"], max(total, operations["total"])
    left = operations["selected"] - operations["tested"]
    if left:
        print(f"{path}: {left} of {operations['selected']} operations were not tested ({report['stop_reason']})")
    # By chance as many are tried as there is time for; their examples and edge cases are sent by another run.
    if not path.startswith("random"):
        missing += left
    # The examples and edge cases of a document are so many and no more; only chance has no end.
    if path == "coverage.json" and report["stop_reason"] != "completed":
        print(f"{path}: the run ended before all edge cases were sent ({report['stop_reason']})")
        missing += 1

# The runs of all operations by examples and by chance select the same ones; the others have their own.
covered = sum(count for path, count in tested.items() if not path.startswith("random"))
if covered + apart != total:
    print(f"{total} operations are described; {covered} were tested and {apart} are left out on purpose")
    missing += 1
print(f"{covered} of {total} operations were tried")
print(f"{sent - failed - broken} passed, {failed + broken + missing} failed")
sys.exit(1 if failed or broken or missing or not sent else 0)
