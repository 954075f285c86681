#!/usr/bin/env bash
# Install the Debian packages that the tests need, or say how: bash tests/system_packages.sh {tests|venv} [PYTHON]
#
# `venv` is what `make venv` needs, `tests` that and all that tests run. Packages that are missing are installed where
# this user may (root, or sudo without a password). Else nothing is changed, and the exit status is 1.
set -eu

# One line for each: the program, the packages that bring it, what it is for.
tests_need() {
    cat <<'LIST'
promtool                 prometheus               rules, alerts and the metrics page are checked by promtool
victoria-metrics         victoria-metrics         a long-term store that is written to
prometheus-alertmanager  prometheus-alertmanager  with amtool: routes, and real alerts
chromium                 chromium                 the page of `analyze` is opened in a browser
chromedriver             chromium-driver          drives that browser
ip                       iproute2                 a network is cut in a namespace of its own
systemd-analyze          systemd                  checks the unit; nothing of systemd is started
shellcheck               shellcheck               checks the shell scripts
kubectl                  kubernetes-client        renders the manifests
slurmctld                slurmctld,slurm-client   a Slurm of one node, started by a test
slurmd                   slurmd                   the node of that Slurm
srun                     slurm-client             starts jobs in that Slurm
munged                   munge                    knows the users of that Slurm
pg_ctlcluster            postgresql               a store that several collectors share
jq                       jq                       the commands of docs/nodes.md are run
openssl                  openssl                  certificates for the tests of HTTPS
gcc                      gcc,libc6-dev            the stand-in for NVML is a small library in C
g++                      g++                      the GPU inside Kineto is one in C++
valgrind                 valgrind                 looks for invalid reads and writes in make soak
LIST
}

what=${1:-tests}
python=${2:-python3}
policy=${RANKSCOPE_TESTS_POLICY:-/usr/sbin/policy-rc.d} # a test names another file
programs=()
packages=()

find_missing() {
    programs=() packages=()
    # Debian splits what `python -m venv` needs off. A python that is not there is named by the Makefile.
    if command -v "$python" >/dev/null && ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        programs+=("$python -m venv")
        case ${python##*/} in
            python3.*) packages+=("${python##*/}-venv") ;;
            *) packages+=(python3-venv) ;;
        esac
    fi
    if [ "$what" = tests ]; then
        while read -r program brought_by _; do
            # Debian puts some of them where only root's PATH leads.
            if ! PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null; then
                programs+=("$program")
                IFS=, read -ra parts <<<"$brought_by"
                packages+=("${parts[@]}")
            fi
        done < <(tests_need)
    fi
}

# Installed, but not started: 101 is policy-rc.d's word for "not allowed". One that is there already stays.
install_packages() {
    if [ ! -e "$policy" ]; then
        trap '"${as_root[@]}" rm -f "$policy"' EXIT
        printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
        "${as_root[@]}" chmod 755 "$policy"
    fi
    "${as_root[@]}" apt-get update -qq &&
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
}

stop() {
    echo "$*" >&2
    exit 1
}

case $what in tests | venv) ;; *) stop "system_packages.sh: $what is neither tests nor venv" ;; esac
find_missing
[ ${#packages[@]} -gt 0 ] || exit 0

names=$(printf ', %s' "${programs[@]}")
names=${names#, }
if ! command -v apt-get >/dev/null; then
    stop "Missing on this machine: $names.
It has no apt-get: install them in its own way (Debian's packages are ${packages[*]}), then run make again."
fi
if [ "$(id -u)" = 0 ]; then
    as_root=(env)
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root=(sudo -n)
else
    stop "Missing on this machine: $names.
This user may not install packages. Run this as root, then make again (daemons are installed, not started):
    bash $(cd "$(dirname "$0")" && pwd)/system_packages.sh $what $python"
fi

echo "Installing Debian packages, which takes some minutes: ${packages[*]}" >&2
install_packages || stop "apt-get did not install ${packages[*]}; what it said is above."
find_missing
[ ${#packages[@]} -eq 0 ] || stop "Installed, and still missing: ${programs[*]} (of ${packages[*]})."
