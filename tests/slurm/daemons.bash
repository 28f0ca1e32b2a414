# Functions that start the daemons of Slurm, for scripts that include this file. All files of the daemons are
# in the folder $folder, which only this user can write. Their output goes to $folder/*.log.
# shellcheck shell=bash
folder=/run/cluster
export PATH=$PATH:/usr/sbin:/sbin

skip() { printf 'slurm: SKIPPED: %s\n' "$*"; exit 77; }

# need_slurm: ends the script with exit code 77 if Slurm is not installed.
need_slurm() {
  local pair
  for pair in munged:munge slurmctld:slurmctld slurmd:slurmd srun:slurm-client ip:iproute2; do
    command -v "${pair%%:*}" >/dev/null ||
      skip "${pair%%:*} is not installed (Debian package ${pair#*:}; scripts/setup checks)"
  done
  ls /usr/lib/*/slurm-wlm/mpi_pmix.so >/dev/null 2>&1 ||
    skip "Slurm has no PMIx plugin here (Debian package slurm-wlm-basic-plugins; scripts/setup checks)"
}

# fail TEXT: ends the script with exit code 125. Prints the ends of the logs.
fail() {
  local log
  printf 'slurm: %s\n' "$*" >&2
  for log in "$folder"/*.log; do
    printf -- '---- %s\n' "$log" >&2
    tail -n 20 "$log" >&2
  done
  exit 125
}

# eventually SECONDS COMMAND...: waits until COMMAND succeeds.
eventually() {
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    [ $SECONDS -lt $end ] || return 1
    sleep 0.05
  done
}

# configure HOST ADDRESS NODE...: writes slurm.conf. slurmctld runs on HOST with ADDRESS. A NODE is
# "NAME HOST ADDRESS PORT".
configure() {
  local host=$1 address=$2 node name
  shift 2
  export SLURM_CONF=$folder/slurm.conf
  mkdir -p "$folder/spool"
  # No cgroups, no accounting, root as the user of all daemons. Each node says that it has four processors,
  # whatever the machine has. The limits of time are for a machine that does many other things.
  cat >"$SLURM_CONF" <<CONF
ClusterName=private
SlurmctldHost=$host($address)
SlurmctldPort=6817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CredType=cred/munge
StateSaveLocation=$folder/spool
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/%n.pid
TmpFS=$folder/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
KillWait=2
MessageTimeout=60
SlurmdTimeout=600
PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP
CONF
  for node; do
    read -r name host address port <<<"$node"
    printf 'NodeName=%s NodeHostname=%s NodeAddr=%s Port=%s CPUs=4\n' "$name" "$host" "$address" "$port" \
      >>"$SLURM_CONF"
    # Of the node alone: nodes of one machine would find the PMIx servers of each other there.
    mkdir -p "$folder/$name" "$folder/spool/$name"
  done
  # The plugin that slurmd starts without any control group mounted.
  echo "CgroupPlugin=cgroup/v1" >"$folder/cgroup.conf"
}

# start_munged KEY: KEY is a file of 32 bytes or more.
start_munged() {
  (umask 077 && head -c 1024 "$1" >"$folder/munge.key")
  munged --foreground --socket="$folder/munge.socket" --key-file="$folder/munge.key" \
    --pid-file="$folder/munge.pid" --seed-file="$folder/munge.seed" --origin=127.0.0.1 --num-threads=2 \
    >"$folder/munged.log" 2>&1 &
  eventually 60 test -S "$folder/munge.socket" || fail "munged did not start"
}

start_controller() { slurmctld -D >"$folder/slurmctld.log" 2>&1 & }
start_node() { slurmd -D -N "$1" >"$folder/$1.log" 2>&1 & }

# wait_for_nodes COUNT: until this number of nodes is ready for jobs.
wait_for_nodes() {
  all_idle() { [ "$(sinfo -h -N -o %T 2>/dev/null | grep -cx idle)" = "$1" ]; }
  eventually 120 all_idle "$1" || fail "after 120 s, not all nodes are idle"
}
