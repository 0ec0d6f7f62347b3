#!/bin/bash
# Closes the VM's metadata server, and every other link-local address, for the users that jobs run as: whoever asks the
# metadata server gets a token of the VM's service account, which is the daemon's. Port 53 stays open, because Google's
# metadata server is the VM's name server, too.
#
# bastion.service runs it as root before the daemon starts, any number of times; the daemon does not start without it.
# It uses nftables, or else iptables, and touches no rule of others.
#
# Without arguments, the users are those named bastion-job-*. Otherwise the arguments are their numbers.
set -euo pipefail
# Programs of the administrator are not on every PATH.
PATH="$PATH:/usr/sbin:/sbin"

name=bastion_jobs
ipv4=169.254.0.0/16
# fd20:ce::254 is Google's, fd00:ec2::254 Amazon's.
ipv6=(fd20:ce::254 fd00:ec2::254 fe80::/10)

fail() {
  printf 'bastion: the metadata server was not closed for jobs: %s\n' "$*" >&2
  exit 1
}

# One transaction: a table with that name exists, is removed, and is made anew.
with_nftables() {
  local users destinations
  users="$(IFS=,; echo "$*")"
  destinations="$(IFS=,; echo "${ipv6[*]}")"
  nft -f - <<RULES
table inet $name
delete table inet $name
table inet $name {
  chain output {
    type filter hook output priority filter; policy accept;
    meta skuid != { $users } accept
    meta l4proto { tcp, udp } th dport 53 accept
    ip daddr $ipv4 reject
    ip6 daddr { $destinations } reject
  }
}
RULES
}

# with_iptables PROGRAM DESTINATIONS USER...: with --noflush only the chains that are named are made anew.
with_iptables() {
  local program="$1" destinations="$2" user
  shift 2
  {
    printf '*filter\n:%s - [0:0]\n' "$name"
    printf -- "-A $name -p %s --dport 53 -j RETURN\n" tcp udp
    for user in "$@"; do
      printf -- "-A $name -d %s -m owner --uid-owner $user -j REJECT\n" $destinations
    done
    printf 'COMMIT\n'
  } | "$program-restore" --wait --noflush
  "$program" --wait --check OUTPUT --jump "$name" 2>/dev/null || "$program" --wait --insert OUTPUT 1 --jump "$name"
}

main() {
  local users=("$@")
  (($# > 0)) || mapfile -t users < <(getent passwd | awk -F: '/^bastion-job-[0-9]+:/ { print $3 }')
  ((${#users[@]} > 0)) || fail "there are no users bastion-job-*; deploy/startup.sh creates them"
  if command -v nft >/dev/null; then
    with_nftables "${users[@]}" || fail "nft refused the rules"
  elif command -v iptables >/dev/null; then
    with_iptables iptables "$ipv4" "${users[@]}" || fail "iptables refused the rules"
    # Without IPv6 there is nothing to close.
    [[ ! -e /proc/net/if_inet6 ]] ||
      with_iptables ip6tables "${ipv6[*]}" "${users[@]}" || fail "ip6tables refused the rules"
  else
    fail "there is neither nft nor iptables; install nftables"
  fi
}

main "$@"
