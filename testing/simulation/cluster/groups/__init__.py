"""The consumer groups of a run: programs that are members, and others that change groups and their topics.

ledger.py            which partitions and records the members have received, and which they have finished (I36, I38, I39)
program.py           the common part of the programs of a run
reader.py            a member of the newer protocol: a program with a production consumer
classic_member.py    a member of the classic protocol: a model client
coordinator_link.py  its requests to the coordinator
clerk.py             an administrator of groups, who also stores positions of groups without members
jobs.py              the topic of the groups' own, which is enlarged, deleted and recreated
work.py              begins and ends all of them, and reports at the end which records the groups have not read
"""
