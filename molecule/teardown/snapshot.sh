# What a host has, one thing a line: packages, accounts, network interfaces, the names of files, the content of /etc.
# Left out: what dpkg, apt and systemd keep for themselves, the insides of the engine, and the traces of a login.
dpkg-query --show --showformat 'package ${db:Status-Abbrev} ${Package}\n'
cut -d: -f1 /etc/passwd | sed 's/^/user /'
cut -d: -f1 /etc/group | sed 's/^/group /'
ip -brief link | awk '$1 !~ /^veth/ { sub("@.*", "", $1); print "interface " $1 }'
(iptables-save; ip6tables-save) 2>/dev/null | grep MUSTER | sed 's/^/rule /' || true
find /etc /opt /srv /usr/local /var/lib /run -xdev \
  \( -path /var/lib/dpkg -o -path /var/lib/apt -o -path /run/systemd -o -path /run/udev -o -path /run/log -o -path /run/lock \
  -o -path '/var/lib/docker/*' -o -path '/var/lib/containerd/*' -o -path '/run/docker/*' -o -path '/run/containerd/*' \
  -o -name motd.dynamic -o -path /run/adduser -o -path /run/sshd.pid -o -path /run/utmp -o -path '/etc/*-' -o -path '/run/user' \) \
  -prune -o -printf 'file %p %y\n'
find /etc -type f ! -name '*-' ! -name ld.so.cache -exec sha256sum {} +
