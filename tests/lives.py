"""What a log may be found to hold, against plain rows: sequences that are appended to, cut, forked, evicted from and
dropped, each step planned on a dict and done to a store.

known: by name the rows (a pair of arrays a layer) and the tokens that are evicted.
"""

import numpy as np

from tests.test_lifecycle import append, cut, data, join, put

LAYERS = 2
NOTHING = cut(data(1, 0), 0), ()  # of a sequence that was begun
_ENDS = {"truncate": 1, "fork": 2, "evict": 2, "summarize": 2}  # which word of a step is a token that must be there


def plan(known, step):
    """How sequences stand once a step is done. Raises LookupError if it can't be."""
    what, *how = step
    known = dict(known)
    if what in _ENDS and how[_ENDS[what]] > length(known[how[0]]):
        raise LookupError(step)
    if what == "append":
        name, tokens, seed = how
        rows, gone = known.get(name, NOTHING)
        known[name] = join(rows, data(tokens, seed)), gone
    elif what == "drop":
        del known[how[0]]
    elif what == "fork":
        name, new, end = how
        known[new] = cut_known(known[name], end)
    elif what == "truncate":
        name, end = how
        known[name] = cut_known(known[name], end)
    elif what == "evict":
        name, first, end = how
        rows, gone = known[name]
        known[name] = rows, tuple(sorted({*gone, *range(first, end)}))
    elif what == "summarize":
        name, first, end, tokens, seed = how
        rows, gone = known[name]
        gone = {*gone, *range(first, end)} - {*range(first, first + tokens)}
        known[name] = put(rows, first, data(tokens, seed)), tuple(sorted(gone))
    return known


def perform(store, step):
    """Do a step to a store."""
    what, *how = step
    if what == "append":
        name, tokens, seed = how
        append(store.sequence(name), data(tokens, seed))
    elif what == "drop":
        store.drop(how[0])
    elif what == "fork":
        store.fork(*how)
    elif what == "truncate":
        store.sequence(how[0]).truncate(how[1])
    elif what == "evict":
        store.sequence(how[0]).evict(*how[1:])
    elif what == "summarize":
        name, first, end, tokens, seed = how
        store.sequence(name).summarize(first, end, dict(enumerate(data(tokens, seed))))
    else:
        {"compact": store.compact, "sync": store.sync}[what]()


def length(known):
    """Tokens of a sequence."""
    return len(known[0][0][0])


def cut_known(known, end):
    rows, gone = known
    return cut(rows, end), tuple(t for t in gone if t < end)


def read_all(store):
    """All sequences: rows that are there, zeros for others, and the tokens that are evicted."""
    out = {}
    for sequence in store:
        gone = tuple(t for first, end in sequence.evicted(0) for t in range(first, end))
        left = [_left(sequence.held(n), gone) for n in range(LAYERS)]
        rows = [[_spread(x, left[n], len(sequence)) for x in sequence.read(n)] for n in range(LAYERS)]
        out[sequence.name] = rows, gone
    return out


def _spread(rows, tokens, length):
    out = np.zeros((length, *rows.shape[1:]), rows.dtype)
    out[tokens] = rows
    return out


def _left(tokens, gone):
    return np.setdiff1d(np.arange(tokens.start, tokens.stop), gone)


def same(found, known, length=None, window=0):
    """Whether a sequence stands as it should, but for being cut to `length`, if told. window: of the last layer."""
    rows, gone = known
    if length is not None:
        rows, gone = cut_known(known, length)
    if len(found[0][0][0]) != len(rows[0][0]) or found[1] != gone:
        return False
    end = len(rows[0][0])
    for n, (own, wanted) in enumerate(zip(found[0], rows, strict=True)):
        left = _left(range(max(0, end - window) if window and n == LAYERS - 1 else 0, end), gone)
        if not all(np.array_equal(*(x[left].view(np.uint16) for x in pair)) for pair in zip(own, wanted, strict=True)):
            return False
    return True


def all_same(found, known):
    """Whether all sequences stand as they should."""
    return found.keys() == known.keys() and all(same(found[name], known[name]) for name in known)


def between(found, allowed, window=0):
    """Whether each sequence stands as in one of the states, or has some of what was appended to it between them."""
    names = {name for known in allowed for name in known}
    return set(found) <= names and all(
        _is_between(found.get(name), [known.get(name) for known in allowed], window) for name in names
    )


def _is_between(own, states, window):
    if own is None:
        return None in states
    lengths = [0 if state is None else length(state) for state in states]
    return length(own) >= min(lengths) and stood(own, states, window) is not None


def stood(own, states, window=0):
    """The last of these states of a sequence, cut to its length, that it stands as; None if it stands as none."""
    reach = (state for state in reversed(states) if state is not None and length(own) <= length(state))
    return next((cut_known(state, length(own)) for state in reach if same(own, state, length(own), window)), None)
