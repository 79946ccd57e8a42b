"""FTP servers in namespaces, for anonymous users who may read one folder and write below `up`."""

import os
import pwd
import shlex
from pathlib import Path

# Debian allows one FTP server at a time, so scripts/setup.sh unpacks them here.
TOOLS = Path("/usr/local/lib/natrix-tools")
PORT = 21
NAMES = ("vsftpd", "proftpd", "pure-ftpd")


def _as_user_ftp(root, files, command):
    """The command where there is a user called "ftp" whose home is `root`: in its own view of /etc/passwd."""
    nobody = pwd.getpwnam("nobody")
    passwords = files / "passwd"
    passwords.write_text(
        Path("/etc/passwd").read_text() + f"ftp:x:{nobody.pw_uid}:{nobody.pw_gid}::{root}:/usr/sbin/nologin\n"
    )
    mounted = f"mount --bind {shlex.quote(str(passwords))} /etc/passwd && exec {shlex.join(map(str, command))}"
    return ["unshare", "--mount", "sh", "-c", mounted]


def _vsftpd(root, files, rate):
    configuration = files / "vsftpd.conf"
    (files / "empty").mkdir(exist_ok=True)
    configuration.write_text(
        f"""listen=YES
listen_port={PORT}
background=NO
anonymous_enable=YES
no_anon_password=YES
local_enable=NO
anon_root={root}
anon_max_rate={rate}
ftp_username=ftp
nopriv_user=nobody
secure_chroot_dir={files / "empty"}
write_enable=YES
anon_upload_enable=YES
connect_from_port_20=YES
pasv_promiscuous=NO
seccomp_sandbox=NO
dual_log_enable=NO
xferlog_enable=NO
"""
    )
    return _as_user_ftp(root, files, [TOOLS / "vsftpd/usr/sbin/vsftpd", configuration])


def _proftpd(root, files, rate):
    configuration = files / "proftpd.conf"
    limit = f"TransferRate RETR {rate / 1024}" if rate else ""
    configuration.write_text(
        f"""ServerType standalone
DefaultServer on
Port {PORT}
UseIPv6 off
User nobody
Group nogroup
PidFile {files}/proftpd.pid
ScoreboardFile {files}/proftpd.scoreboard
SystemLog {files}/proftpd.log
TransferLog none
WtmpLog off
UseReverseDNS off
<Anonymous {root}>
  User nobody
  Group nogroup
  UserAlias anonymous nobody
  RequireValidShell off
  {limit}
</Anonymous>
"""
    )
    return [TOOLS / "proftpd-core/usr/sbin/proftpd", "-n", "-c", configuration]


def _pure_ftpd(root, files, rate):
    server = [TOOLS / "pure-ftpd/usr/sbin/pure-ftpd", "-4", "-e", "-H", "-M", "-S", PORT, "-g", files / "pure.pid"]
    if rate:
        server += ["-t", rate // 1024]
    return _as_user_ftp(root, files, server)


_COMMANDS = {"vsftpd": _vsftpd, "proftpd": _proftpd, "pure-ftpd": _pure_ftpd}


def start(network, host, name, root, rate=0):
    """Starts the server `name` on `host`; `rate`: bytes a second of each download, 0 for no limit."""
    files = network.state.bulk / f"{name}-{host.name}"
    files.mkdir(exist_ok=True)
    # Anonymous users may write nowhere but in `up`; some servers refuse to start otherwise.
    for folder in (network.state.bulk, root):
        os.chmod(folder, 0o755)
    daemon = host.start(name, _COMMANDS[name](root, files, rate))
    network.wait_for_listener(host, PORT)
    return daemon
