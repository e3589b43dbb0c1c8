"""Scenarios of Key_Shared with the real actors in virtual time; each test has the ids of its scenarios in its name.

Not here, and why:

* KST-6: there are no policies that forbid a type of subscription.
* KST-7: the protocol has no cumulative acknowledgement; the client refuses the call before anything is sent.
* KST-13, KST-14: payloads are bytes here; how they are compressed is tested with the batch, encryption is the user's.
* CL-2: there is one list of consumers, so no two can differ. CL-4: one thread.
* PM-6: sums do not wrap in Python; very large ones are tested with the decisions.
* FT-2, FT-5, UA-3, UA-4: threads and locks; every actor runs on one loop and takes no lock.
* UA-6: an entry is one message, so there is no batch index. UA-11: there are no hooks in the removal of a consumer.
* BO-2: the pauses of the reader are not configurable.
* RS-1: a redelivery needs no read here, so there is one slot; RS-12: nothing is registered with a scheduler.
* RS-6: failure handling has no code of its own that could raise, see `Reader.run`.
"""
