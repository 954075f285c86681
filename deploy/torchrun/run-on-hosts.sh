#!/bin/bash
# Start torchrun over ssh on the first hosts of a list that rankscope does not recommend to exclude (docs/nodes.md):
#
#     rankscope nodes --exclude-file exclude.txt
#     deploy/torchrun/run-on-hosts.sh hosts.txt exclude.txt 4 --nproc-per-node 8 train.py --its-own args
#
# hosts.txt has a host a line, more of them than are needed: what follows the name, empty lines and lines with # are
# ignored. Without exclude.txt all hosts are used. The first one used is the rendezvous. torchrun runs in the folder in
# which this script is called, which has to be there on each host. Ends with the first exit status that is not 0.
# Environment: RENDEZVOUS_PORT (29400), REMOTE_SHELL (ssh), TORCHRUN (torchrun).
set -euo pipefail

die() {
    echo "run-on-hosts: $1" >&2
    exit 2
}

(($# >= 4)) || die "usage: run-on-hosts.sh HOSTS EXCLUDE NODES torchrun-arguments..."
hosts_file=$1 exclude_file=$2 nodes=$3
shift 3
[[ $nodes =~ ^[1-9][0-9]*$ ]] || die "NODES is $nodes; it must be a whole number from 1"
[[ -r $hosts_file ]] || die "$hosts_file cannot be read"
if [[ ! -e $exclude_file ]]; then
    echo "run-on-hosts: there is no $exclude_file; no host is excluded" >&2
    exclude_file=/dev/null
fi

listed=$(sed -E 's/#.*//; s/^[[:space:]]+//; s/[[:space:]].*//; /^$/d' "$hosts_file")
left=$(grep -vFxf "$exclude_file" <<<"$listed" || true)
mapfile -t hosts < <(head -n "$nodes" <<<"$left" | sed '/^$/d')
((${#hosts[@]} == nodes)) || die "${#hosts[@]} of $nodes hosts are left, after those in $exclude_file are excluded"
for host in "${hosts[@]}"; do
    [[ $host =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]] || die "$host is no host name"
done
echo "run-on-hosts: ${hosts[*]}" >&2

# One line for the shell of the host: each argument is quoted.
printf -v command '%q ' "${TORCHRUN:-torchrun}" --nnodes "$nodes" --rdzv-backend c10d --rdzv-id "run-$$-$RANDOM" \
    --rdzv-endpoint "${hosts[0]}:${RENDEZVOUS_PORT:-29400}" "$@"
printf -v command 'cd %q && exec %s' "$PWD" "$command"
children=()
trap 'kill "${children[@]}" 2>/dev/null || true' INT TERM
for host in "${hosts[@]}"; do
    ${REMOTE_SHELL:-ssh} "$host" "$command" </dev/null &
    children+=($!)
done
status=0
for child in "${children[@]}"; do
    wait "$child" || { own=$?; ((status != 0)) || status=$own; }
done
exit "$status"
