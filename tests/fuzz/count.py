"""Adds up reports of schemathesis. The last line is `N passed, N failed`; ends with 1 if any failed."""

import json
import sys

sent = failed = broken = operations = 0
for path in sys.argv[1:]:
    try:
        with open(path) as file:
            report = json.load(file)
    except (OSError, ValueError) as why:
        print(f"no report was written: {why}; see target/fuzz/run.log", file=sys.stderr)
        sys.exit(1)
    cases = report["test_cases"]
    sent += cases["generated"]
    operations += report["operations"]["tested"]
    failed += len(report["failures"])
    broken += len(report["errors"])
    for failure in report["failures"] + report["errors"]:
        print(json.dumps(failure)[:2000])
print(f"{operations} operations were tried")
print(f"{sent - failed - broken} passed, {failed + broken} failed")
sys.exit(1 if failed or broken or not sent else 0)
