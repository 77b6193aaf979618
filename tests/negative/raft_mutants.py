"""Mechanical mutants of Raft: small edits of its source, each of which breaks a rule.

A mutant is (name, file, old text, new text). The old text must occur exactly once, so that a change
of the source that moves a rule is noticed here. `load` builds the whole package again under another
name, with that one edit.

Edits that change nothing observable here were left out: no checksum (a torn write leaves a prefix,
which the length and the codec notice too; the unit tests flip bits), late pieces of a snapshot that
begin it anew (they are sent again), and older numbers of a session that act again (a client's
repeats always precede its next operation in the log, as no fault delays the clients' messages).
"""

from __future__ import annotations

import sys
import types
from importlib import resources
from typing import Any, NamedTuple

PACKAGE = "orrery.systems.protocols.baselines.raft"
FILES = ("log", "storage", "machine", "core", "elections", "replication", "node")
"""The modules of the package, each after those it imports."""


class Mutant(NamedTuple):
    """One edit of the source."""

    name: str
    file: str
    old: str
    new: str


MUTANTS = (
    # -- the disk
    Mutant("dropped_fsync", "storage",
           "            await self._disk.fsync(self._name)\n", ""),
    Mutant("sync_returns_at_once", "storage",
           "        if self._safe >= wanted:\n            return\n        async with",
           "        if wanted:\n            return\n        async with"),
    Mutant("sync_counts_what_it_did_not_write", "storage",
           "upto, data = self._count, b\"\".join(self._noted)",
           "upto, data = self._count, b\"\".join(self._noted[:1])"),
    Mutant("rewrite_without_fsync", "storage",
           "            await self._disk.fsync(name)\n", ""),
    Mutant("old_file_deleted_first", "storage",
           "            await self._disk.write(name, frame(state()))\n",
           "            if old:\n                await self._disk.delete(old)\n"
           "                await self._disk.fsync(old)\n                old = \"\"\n"
           "            await self._disk.write(name, frame(state()))\n"),
    Mutant("oldest_file_counts", "storage",
           "sorted(names, reverse=True)", "sorted(names)"),
    Mutant("torn_end_stays", "storage",
           "        await self.rewrite(lambda: state)\n",
           "        if names and records:\n"
           "            self._name = name\n            return state\n"
           "        await self.rewrite(lambda: state)\n"),
    Mutant("replay_keeps_the_tail", "storage",
           "            del entries[record.index - snapshot.index - 1 :]\n", ""),
    Mutant("replay_off_by_one", "storage",
           "del entries[record.index - snapshot.index - 1 :]",
           "del entries[record.index - snapshot.index :]"),
    Mutant("vote_not_noted", "core",
           "        self.storage.note_vote(term, voted_for)\n", ""),
    Mutant("entries_not_noted", "core",
           "        self.storage.note_put(index, entries)\n", ""),
    Mutant("base_forgets_the_vote", "core",
           "return Base(self.term, self.voted_for,", "return Base(self.term, NOBODY,"),
    Mutant("base_forgets_the_term", "core",
           "return Base(self.term, self.voted_for,", "return Base(0, self.voted_for,"),
    # -- terms and majorities
    Mutant("majority_minus_one", "core",
           ") > len(members)", ") >= len(members) - 1"),
    Mutant("half_is_a_majority", "core",
           ") > len(members)", ") >= len(members)"),
    Mutant("keeps_the_vote_in_a_new_term", "core",
           "self.remember_vote(term, NOBODY)", "self.remember_vote(term, self.voted_for)"),
    Mutant("leader_never_steps_down", "core",
           "        self.mode = Mode.FOLLOWER\n\n    def is_majority",
           "        if self.mode is not Mode.LEADER:\n            self.mode = Mode.FOLLOWER\n\n"
           "    def is_majority"),
    Mutant("newer_term_not_adopted", "core",
           "        if term > self.term:\n            self.remember_vote(term, NOBODY)\n"
           "            self.leader = NOBODY\n", ""),
    # -- elections
    Mutant("votes_twice", "elections",
           " and self.voted_for in (NOBODY, sender)", ""),
    Mutant("votes_for_any_log", "elections",
           "(last_term, last_index) >= (log.last_term, log.last_index)", "last_index >= 0"),
    Mutant("compares_logs_by_length", "elections",
           "(last_term, last_index) >= (log.last_term, log.last_index)",
           "last_index >= log.last_index"),
    Mutant("compares_logs_by_term", "elections",
           "(last_term, last_index) >= (log.last_term, log.last_index)",
           "last_term >= log.last_term"),
    Mutant("votes_only_for_longer_logs", "elections",
           "(last_term, last_index) >= (log", "(last_term, last_index) > (log"),
    Mutant("votes_in_old_terms", "elections",
           "granted = term == self.term and", "granted = term <= self.term and"),
    Mutant("vote_before_disk", "elections",
           "            self.contact.set()\n        await self.storage.sync()\n",
           "            self.contact.set()\n"),
    Mutant("campaign_in_the_same_term", "elections",
           "self.remember_vote(self.term + 1, self.id)", "self.remember_vote(self.term, self.id)"),
    Mutant("counts_votes_of_old_terms", "elections",
           " and self.mode is Mode.CANDIDATE and asked == self.term)",
           " and self.mode is Mode.CANDIDATE)"),
    Mutant("counts_refusals", "elections",
           "        elif granted and (\n", "        elif (\n"),
    Mutant("never_calls_again", "elections",
           "            except DeadlineExceeded:\n                if",
           "            except DeadlineExceeded:\n                if self.term == 0 and"),
    # -- replication
    Mutant("commits_old_terms", "replication",
           " and self.journal.term_at(index) == self.term", ""),
    Mutant("commits_on_a_minority", "replication",
           "index = have[(len(have) - 1) // 2]", "index = have[(len(have) + 1) // 2]"),
    Mutant("commits_only_what_all_have", "replication",
           "index = have[(len(have) - 1) // 2]", "index = have[0]"),
    Mutant("commits_one_too_far", "replication",
           "            self.commit_to(index)\n            self.serve_reads()\n",
           "            self.commit_to(min(index + 1, self.journal.last_index))\n"
           "            self.serve_reads()\n"),
    Mutant("no_first_entry_of_the_term", "replication",
           "self.term_begins = self.add(Entry(self.term))", "self.term_begins = self.commit"),
    Mutant("own_entry_counts_before_disk", "replication",
           "        await self.storage.sync()\n"
           "        if self.mode is Mode.LEADER and self.term == term:\n            self.match",
           "        if self.mode is Mode.LEADER and self.term == term:\n            self.match"),
    Mutant("match_one_too_high", "replication",
           "known = max(self.match.get(sender, 0), index)",
           "known = max(self.match.get(sender, 0), index + 1)"),
    Mutant("next_one_too_high", "replication",
           "self.next[sender] = max(self.next.get(sender, 0), known + 1)",
           "self.next[sender] = max(self.next.get(sender, 0), known + 2)"),
    Mutant("never_goes_back", "replication",
           "        self.probing.add(peer)\n", "        return\n"),
    Mutant("wrong_term_before", "replication",
           "        before = log.term_at(first - 1)\n",
           "        before = log.term_at(first)\n        before = log.last_term if before is None "
           "else before\n"),
    Mutant("accepts_old_leaders", "replication",
           "        if term < self.term:\n            self.tell(sender, Replication.appended, "
           "self.term, False, before, 0, NOBODY, round_)\n            return\n", ""),
    Mutant("answers_of_old_terms_count", "replication",
           "if self.mode is not Mode.LEADER or term != self.term:\n            return\n        "
           "self.acks.add(sender)\n        self.rounds[sender] = max(self.rounds.get(sender, 0), "
           "round_)\n        if ok:",
           "if self.mode is not Mode.LEADER:\n            return\n        "
           "self.acks.add(sender)\n        self.rounds[sender] = max(self.rounds.get(sender, 0), "
           "round_)\n        if ok:"),
    Mutant("follower_answers_before_disk", "replication",
           "        self.commit_to(min(commit, last))\n        await self.storage.sync()\n",
           "        self.commit_to(min(commit, last))\n"),
    Mutant("commits_what_it_has_not_checked", "replication",
           "self.commit_to(min(commit, last))",
           "self.commit_to(min(commit, self.journal.last_index))"),
    Mutant("never_confirms_reads", "replication",
           "if index <= self.applied and self.is_majority(agreed | {self.id}):",
           "if index <= self.applied:"),
    Mutant("reads_before_applying", "replication",
           "if index <= self.applied and self.is_majority(agreed | {self.id}):",
           "if self.is_majority(agreed | {self.id}):"),
    Mutant("read_round_not_new", "node", "        self.round += 1\n", ""),
    Mutant("reads_before_the_first_commit", "node",
           "index = max(self.commit, self.term_begins)", "index = self.commit"),
    Mutant("term_before_not_checked", "log",
           "        if mine == term:\n            return None\n        if mine is None:",
           "        if mine is not None:\n            return None\n        if mine is None:"),
    Mutant("cuts_at_every_message", "log",
           "if at > self.snapshot.index and self.term_at(at) != entry.term:",
           "if at > self.snapshot.index:"),
    Mutant("never_replaces_entries", "log",
           "self.term_at(at) != entry.term:", "self.term_at(at) is None:"),
    Mutant("put_cuts_nothing", "log",
           "        del self.entries[index - self.snapshot.index - 1 :]\n", ""),
    # -- snapshots, sessions, members
    Mutant("snapshot_of_a_wrong_term", "core",
           "log.compact(Snapshot(index, term,", "log.compact(Snapshot(index, term + 1,"),
    Mutant("snapshot_one_too_far", "core",
           "log, index = self.journal, self.applied\n        term",
           "log = self.journal\n"
           "        index = min(self.applied + 1, log.last_index)\n        term"),
    Mutant("snapshot_not_restored", "replication", "            self.restore(snapshot)\n",
           "            self.commit = self.applied = snapshot.index\n"),
    Mutant("lost_pieces_not_sent_again", "replication",
           "if index == sent_index and offset != sent:",
           "if index == sent_index and offset > sent:"),
    Mutant("sessions_not_in_snapshots", "machine",
           "sessions = [self.sessions[client] for client in sorted(self.sessions)]",
           "sessions: list[Session] = []"),
    Mutant("no_sessions", "machine",
           "        self.sessions[client] = Session(client, number, result)\n", ""),
    Mutant("swaps_without_looking", "machine",
           "if self.values.get(op.key) != op.expected:", "if False:"),
    Mutant("changes_two_members_at_once", "node",
           "        if not settled or not wanted:\n", "        if not wanted:\n"),
)  # fmt: skip


def source_of(file: str) -> str:
    """The text of one module of the package."""
    return resources.files(PACKAGE).joinpath(f"{file}.py").read_text(encoding="utf-8")


def edited(mutant: Mutant) -> str:
    """The text of the mutant's module, or an error when the old text is not there exactly once."""
    text = source_of(mutant.file)
    if text.count(mutant.old) != 1:
        raise LookupError(f"{mutant.name}: {text.count(mutant.old)} places match in {mutant.file}")
    return text.replace(mutant.old, mutant.new)


def load(mutant: Mutant) -> Any:
    """The `Raft` class of the mutated package."""
    name = f"raft_mutant_{mutant.name}"
    package = types.ModuleType(name)
    package.__path__ = []
    sys.modules[name] = package
    for file in FILES:
        text = edited(mutant) if file == mutant.file else source_of(file)
        module = types.ModuleType(f"{name}.{file}")
        sys.modules[module.__name__] = module
        code = compile(text.replace(f"{PACKAGE}.", f"{name}."), f"<{mutant.name}/{file}>", "exec")
        exec(code, module.__dict__)
    return sys.modules[f"{name}.node"].Raft
