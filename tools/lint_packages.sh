#!/bin/sh
# Checks licences of linked crates, and the form and permissions of workflows and templates.
. "$(dirname "$0")/common.sh"
"$bin/python" tools/third_party.py --check
"$bin/zizmor" --offline --quiet .github
check() { schema=$1 && shift && "$bin/check-jsonschema" --quiet --builtin-schema "vendor.github-$schema" "$@"; }
check workflows .github/workflows/*.yml
check issue-config .github/ISSUE_TEMPLATE/config.yml
for form in .github/ISSUE_TEMPLATE/*; do
  case $form in */config.yml) ;; *) check issue-forms "$form" ;; esac
done
"$bin/check-jsonschema" --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
