"""Access: files, hosts, downloads and code of a workflow. There is one policy, and only the user widens it (docs/security.md).

permissions  the policy: each use of a name from a graph is checked here
wants        what a graph asks for, said before it runs
remembered   the file of what the user has allowed by clicks
opening      a stranger's file name, judged before the file is touched
addresses    hosts and repositories, read strictly
"""
