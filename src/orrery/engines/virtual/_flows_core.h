/* The arithmetic and the flat arrays of _flows.c: joining, leaving, the solve, the next completion.
 *
 * Both twins do the same IEEE operations in the same order, so their results agree to the bit. That
 * needs -ffp-contract=off: a fused multiply-add rounds once where Python rounds twice.
 *
 * A flow lives in a slot of flat arrays. A link lists its members and a flow knows its place in
 * each list, so it joins and leaves in time proportional to its route. Completion times stand in a
 * tree of minima with 32 children a node: a solve that moves most flows refreshes it in one linear
 * pass, one that moves a few touches a few nodes. All memory is taken in start(), so that a solve
 * can neither fail nor run foreign code.
 */
#ifndef ORRERY_FLOWS_CORE_H
#define ORRERY_FLOWS_CORE_H

#include <Python.h>
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define FOREVER_NS INT64_MAX
#define FAN 32
#define MAX_LEVELS 8
#define MAX_SLOTS (1 << 30)
#define ROUNDING (1.0 - 0x1p-51)

typedef struct { int32_t slot, hop; } Member;
typedef struct { double capacity; Member *members; int32_t count, room; } Link;
typedef struct { double spare, waiting; } Fill; /* a pair of doubles: one vector subtraction */
typedef struct { double key; int32_t link; } Share;
typedef struct { double cap; int64_t id; int32_t slot; } Cap;
typedef struct { int64_t id; int32_t slot; } Place;
typedef struct { int64_t *min; int32_t *todo; char *stale; int32_t count, todo_count; } Level;

typedef struct {
    double rate, left, cap;
    int64_t since, id;      /* the id is -1 in a free slot */
    PyObject *tag;
    int32_t *links;         /* the route, then the place in each link's member list */
    int32_t hops, hop_room; /* in a free slot, hops is the next free slot */
} Flow;

typedef struct {
    PyObject_HEAD
    Link *links;
    Fill *fill;
    Share *shares;
    uint64_t *link_seen;
    int32_t *queue, *dirty;
    char *is_dirty;
    Flow *flows;
    uint64_t *seen, *fixed;
    int32_t *picked;
    Place *order;      /* (id, slot) in order of ids, ended flows among them until it is full */
    Cap *caps, *found; /* the capped flows: a sorted part, then a new one; and a work area */
    Level levels[MAX_LEVELS];
    int64_t clock, next_id;
    uint64_t epoch;
    int32_t link_count, busy, dirty_count, slots, free_slot, live, level_count;
    int32_t order_count, caps_count, caps_sorted, whole;
} Net;

/* ---- the tree of completion times */

static inline void mark(Level *level, int32_t block)
{
    if (!level->stale[block]) {
        level->stale[block] = 1;
        level->todo[level->todo_count++] = block;
    }
}

static inline void set_due(Net *net, int32_t slot, int64_t due)
{
    net->levels[0].min[slot] = due;
    mark(&net->levels[1], slot / FAN);
}

static int64_t min_due(Net *net)
{
    if (net->slots == 0)
        return FOREVER_NS;
    for (int k = 1; k < net->level_count; k++) {
        Level *level = &net->levels[k];
        for (int32_t i = 0; i < level->todo_count; i++) {
            int32_t block = level->todo[i];
            const int64_t *below = net->levels[k - 1].min + (size_t)block * FAN;
            int64_t least = below[0];
            for (int j = 1; j < FAN; j++)
                least = below[j] < least ? below[j] : least;
            level->min[block] = least;
            level->stale[block] = 0;
            if (k + 1 < net->level_count)
                mark(&net->levels[k + 1], block / FAN);
        }
        level->todo_count = 0;
    }
    return net->levels[net->level_count - 1].min[0];
}

/* Puts the slots due by `now` into `picked`; the tree must be fresh. */
static int32_t pick_due(Net *net, int k, int32_t block, int64_t now, int32_t found)
{
    if (net->levels[k].min[block] > now)
        return found;
    if (k == 0) {
        net->picked[found] = block;
        return found + 1;
    }
    for (int32_t j = 0; j < FAN; j++)
        found = pick_due(net, k - 1, block * FAN + j, now, found);
    return found;
}

/* Resizes the array whose pointer lies at `place`, of whatever type (hence the copies). */
static int resize(void *place, size_t count, size_t size)
{
    void *array;
    memcpy(&array, place, sizeof array);
    array = PyMem_Realloc(array, count * size);
    if (array == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    memcpy(place, &array, sizeof array);
    return 1;
}

static int grow_tree(Net *net, int32_t slots)
{
    int32_t counts[MAX_LEVELS], level_count = 0, count = slots;
    for (;; count = (count + FAN - 1) / FAN) {
        Level *level = &net->levels[level_count];
        size_t padded = ((size_t)count + FAN - 1) / FAN * FAN;
        if (!resize(&level->min, padded, sizeof *level->min)
            || !resize(&level->todo, padded, sizeof *level->todo)
            || !resize(&level->stale, padded, 1))
            return 0;
        counts[level_count++] = count;
        if (count == 1)
            break;
    }
    for (int32_t i = net->slots; i < slots; i++)
        net->levels[0].min[i] = FOREVER_NS;
    for (int k = 0; k < level_count; k++) {
        Level *level = &net->levels[k];
        int32_t padded = (counts[k] + FAN - 1) / FAN * FAN;
        for (int32_t i = 0; k > 0 && i < padded; i++)
            level->min[i] = FOREVER_NS;
        memset(level->stale, 0, padded);
        level->count = counts[k];
        level->todo_count = 0;
    }
    for (int32_t block = 0; block < counts[1]; block++)
        mark(&net->levels[1], block);
    net->level_count = level_count;
    return 1;
}

/* ---- slots, ids and routes */

static int grow_slots(Net *net)
{
    int32_t old = net->slots, slots = old ? 2 * old : FAN;
    if (slots > MAX_SLOTS) {
        PyErr_NoMemory();
        return 0;
    }
    if (!resize(&net->flows, slots, sizeof *net->flows)
        || !resize(&net->seen, slots, sizeof *net->seen)
        || !resize(&net->fixed, slots, sizeof *net->fixed)
        || !resize(&net->picked, slots, sizeof *net->picked)
        || !resize(&net->order, 2 * (size_t)slots, sizeof *net->order)
        || !resize(&net->caps, 2 * (size_t)slots, sizeof *net->caps)
        || !resize(&net->found, 2 * (size_t)slots, sizeof *net->found) || !grow_tree(net, slots))
        return 0;
    memset(net->flows + old, 0, sizeof *net->flows * (size_t)(slots - old));
    for (int32_t slot = slots - 1; slot >= old; slot--) {
        net->seen[slot] = net->fixed[slot] = 0;
        net->flows[slot].id = -1;
        net->flows[slot].hops = net->free_slot;
        net->free_slot = slot;
    }
    net->slots = slots;
    return 1;
}

static int32_t slot_of(const Net *net, int64_t id)
{
    int32_t low = 0, high = net->order_count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (net->order[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == net->order_count || net->order[low].id != id)
        return -1;
    int32_t slot = net->order[low].slot;
    return net->flows[slot].id == id ? slot : -1;
}

/* Appends to `order` and, where there is a cap, to `caps`; full arrays drop the ended flows. */
static void enlist(Net *net, int32_t slot)
{
    const Flow *flow = &net->flows[slot];
    if (net->order_count == 2 * net->slots) {
        int32_t kept = 0;
        for (int32_t i = 0; i < net->order_count; i++)
            if (net->flows[net->order[i].slot].id == net->order[i].id)
                net->order[kept++] = net->order[i];
        net->order_count = kept;
    }
    net->order[net->order_count++] = (Place){flow->id, slot};
    if (flow->hops == 0 || flow->cap == INFINITY)
        return;
    if (net->caps_count == 2 * net->slots) {
        int32_t kept = 0, sorted = 0;
        for (int32_t i = 0; i < net->caps_count; i++)
            if (net->flows[net->caps[i].slot].id == net->caps[i].id) {
                net->caps[kept++] = net->caps[i];
                sorted += i < net->caps_sorted;
            }
        net->caps_count = kept;
        net->caps_sorted = sorted;
    }
    net->caps[net->caps_count++] = (Cap){flow->cap, flow->id, slot};
}

static inline void touch(Net *net, int32_t link)
{
    if (!net->is_dirty[link]) {
        net->is_dirty[link] = 1;
        net->dirty[net->dirty_count++] = link;
    }
}

/* Takes a flow off its links and frees its slot; its tag passes to the caller. */
static PyObject *leave(Net *net, int32_t slot)
{
    Flow *flow = &net->flows[slot];
    PyObject *tag = flow->tag;
    for (int32_t hop = 0; hop < flow->hops; hop++) {
        Link *link = &net->links[flow->links[hop]];
        int32_t place = flow->links[flow->hops + hop];
        Member last = link->members[--link->count];
        link->members[place] = last;
        Flow *moved = &net->flows[last.slot];
        moved->links[moved->hops + last.hop] = place;
        net->busy -= link->count == 0;
        touch(net, flow->links[hop]);
    }
    flow->tag = NULL;
    flow->id = -1;
    flow->hops = net->free_slot;
    net->free_slot = slot;
    net->live--;
    set_due(net, slot, FOREVER_NS);
    return tag;
}

/* ---- the solve */

static inline int64_t due_at(int64_t since, double left, double rate)
{
    if (left <= 0.0 || rate == INFINITY)
        return since;
    if (rate <= 0.0)
        return FOREVER_NS;
    double wait = left * 1e9 / rate * ROUNDING;
    if (!(wait < 9.2e18))
        return FOREVER_NS;
    int64_t whole = (int64_t)wait;
    whole += (double)whole < wait; /* rounds up */
    return whole > FOREVER_NS - since ? FOREVER_NS : since + whole;
}

static inline double left_at(const Net *net, int32_t slot, int64_t now)
{
    const Flow *flow = &net->flows[slot];
    if (net->levels[0].min[slot] <= now)
        return 0.0;
    double left = flow->left - flow->rate * (double)(now - flow->since) / 1e9;
    return left > 0.0 ? left : 0.0;
}

static int by_cap(const void *a, const void *b)
{
    const Cap *x = a, *y = b;
    if (x->cap != y->cap)
        return x->cap < y->cap ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int by_id(const void *a, const void *b)
{
    const Cap *x = a, *y = b;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Merges the new part of `caps` into the sorted one and drops the ended flows. */
static void sort_caps(Net *net)
{
    if (net->caps_sorted == net->caps_count)
        return;
    int32_t i = 0, j = net->caps_sorted, kept = 0;
    qsort(net->caps + j, net->caps_count - j, sizeof *net->caps, by_cap);
    while (i < net->caps_sorted || j < net->caps_count) {
        int first = j == net->caps_count
                    || (i < net->caps_sorted && by_cap(&net->caps[i], &net->caps[j]) < 0);
        Cap cap = first ? net->caps[i++] : net->caps[j++];
        if (net->flows[cap.slot].id == cap.id)
            net->found[kept++] = cap;
    }
    Cap *merged = net->found;
    net->found = net->caps;
    net->caps = merged;
    net->caps_count = net->caps_sorted = kept;
}

/* Puts the busy links joined to the dirty ones into `queue`; gives the sorted caps to heed.
 * After a walk that reached every busy link, the next few solves take them all without a walk: a
 * full solve gives the same bits, and where one change reaches everything the next one will too. */
static int32_t component(Net *net, const Cap **caps, int32_t *caps_count)
{
    uint64_t epoch = ++net->epoch;
    int32_t count = 0, capped = 0, i;
    for (i = 0; i < net->dirty_count; i++) {
        int32_t link = net->dirty[i];
        net->is_dirty[link] = 0;
        if (net->links[link].count > 0) {
            net->link_seen[link] = epoch;
            net->queue[count++] = link;
        }
    }
    net->dirty_count = 0;
    if (net->whole > 0 && count < net->busy && net->link_count <= 2 * net->busy) {
        net->whole--;
        count = 0;
        for (int32_t link = 0; link < net->link_count; link++) {
            net->link_seen[link] = epoch;
            net->queue[count] = link;
            count += net->links[link].count > 0;
        }
    }
    for (i = 0; i < count && count < net->busy; i++) {
        const Link *link = &net->links[net->queue[i]];
        for (int32_t m = 0; m < link->count && count < net->busy; m++) {
            int32_t slot = link->members[m].slot;
            if (net->seen[slot] == epoch)
                continue;
            net->seen[slot] = epoch;
            const Flow *flow = &net->flows[slot];
            if (flow->cap < INFINITY)
                net->found[capped++] = (Cap){flow->cap, flow->id, slot};
            for (int32_t hop = 0; hop < flow->hops; hop++) {
                int32_t other = flow->links[hop];
                net->queue[count] = other;
                count += net->link_seen[other] != epoch;
                net->link_seen[other] = epoch;
            }
        }
    }
    if (i > 0 && count == net->busy)
        net->whole = 15;
    if (count < net->busy && 8 * (int64_t)capped < net->caps_count) { /* few: sort just these */
        qsort(net->found, capped, sizeof *net->found, by_cap);
        *caps = net->found;
        *caps_count = capped;
    } else { /* many, or all busy links are in and the walk stopped early: use the standing list */
        sort_caps(net);
        *caps = net->caps;
        *caps_count = net->caps_count;
    }
    return count;
}

/* Written without a short circuit, and the caller without an if: the outcome is a coin toss. */
static inline int before(Share a, Share b)
{
    return (a.key < b.key) | ((a.key == b.key) & (a.link < b.link));
}

/* Lets a share sink from `place`; heap[count] must be writable. */
static inline void sift_down(Share *heap, int32_t count, int32_t place, Share share)
{
    heap[count] = (Share){INFINITY, INT32_MAX}; /* stands in for a missing second child */
    for (;;) {
        int32_t child = 2 * place + 1;
        if (child >= count)
            break;
        child += before(heap[child + 1], heap[child]);
        Share least = heap[child];
        if (!before(least, share))
            break;
        heap[place] = least;
        place = child;
    }
    heap[place] = share;
}

static inline void fix(Net *net, int32_t slot, double rate)
{
    Flow *flow = &net->flows[slot];
    Fill *fill = net->fill;
    net->fixed[slot] = net->epoch;
    for (int32_t hop = 0; hop < flow->hops; hop++) {
        Fill *at = &fill[flow->links[hop]];
        at->spare -= rate;
        at->waiting -= 1.0;
    }
    if (flow->rate != rate) { /* settle the bytes sent at the old rate, then go on at the new */
        flow->left = left_at(net, slot, net->clock);
        flow->since = net->clock;
        flow->rate = rate;
        set_due(net, slot, due_at(flow->since, flow->left, rate));
    }
}

/* Brings all rates up to date at the clock's time. */
static void solve(Net *net)
{
    if (net->dirty_count == 0)
        return;
    const Cap *caps;
    int32_t caps_count, next_cap = 0, count = component(net, &caps, &caps_count);
    uint64_t epoch = net->epoch;
    Share *heap = net->shares;
    for (int32_t i = 0; i < count; i++) {
        const Link *link = &net->links[net->queue[i]];
        net->fill[net->queue[i]] = (Fill){link->capacity, (double)link->count};
        heap[i] = (Share){link->capacity / link->count, net->queue[i]};
    }
    for (int32_t i = count / 2 - 1; i >= 0; i--)
        sift_down(heap, count, i, heap[i]);
    while (count > 0) {
        Share top = heap[0];
        if (next_cap < caps_count && caps[next_cap].cap <= top.key) {
            const Cap *cap = &caps[next_cap++];
            const Flow *flow = &net->flows[cap->slot];
            if (flow->id == cap->id && net->fixed[cap->slot] != epoch
                && net->link_seen[flow->links[0]] == epoch)
                fix(net, cap->slot, cap->cap);
            continue;
        }
        Fill fill = net->fill[top.link];
        if (fill.waiting > 0.0) {
            double share = fill.spare / fill.waiting;
            if (share > top.key) { /* the bound was stale; a share never truly shrinks */
                sift_down(heap, count, 0, (Share){share, top.link});
                continue;
            }
            const Link *link = &net->links[top.link];
            int32_t open = 0; /* listed first without a branch, which would be hard to predict */
            for (int32_t m = 0; m < link->count; m++) {
                int32_t slot = link->members[m].slot;
                net->picked[open] = slot;
                open += net->fixed[slot] != epoch;
            }
            for (int32_t m = 0; m < open; m++)
                fix(net, net->picked[m], top.key);
        }
        Share last = heap[--count];
        sift_down(heap, count, 0, last);
    }
}

/* Makes room for a flow: whatever can fail for want of memory fails here, before any change. */
static int make_room(Net *net, const int32_t *route, Py_ssize_t hops)
{
    if (net->live == net->slots && !grow_slots(net))
        return 0;
    Flow *flow = &net->flows[net->free_slot];
    if (flow->hop_room < hops) {
        if (!resize(&flow->links, 2 * (size_t)hops, sizeof *flow->links))
            return 0;
        flow->hop_room = (int32_t)hops;
    }
    for (Py_ssize_t i = 0; i < hops; i++) {
        Link *link = &net->links[route[i]];
        if (link->count == link->room) {
            int32_t room = link->room ? 2 * link->room : 4;
            if (!resize(&link->members, room, sizeof *link->members))
                return 0;
            link->room = room;
        }
    }
    return 1;
}

/* Puts a flow that has room into a free slot and on its links; takes over the tag. */
static int64_t join(Net *net, const int32_t *route, int32_t hops, double size, double cap,
                    PyObject *tag)
{
    int32_t slot = net->free_slot;
    Flow *flow = &net->flows[slot];
    net->free_slot = flow->hops;
    net->live++;
    flow->id = net->next_id++;
    flow->tag = tag;
    flow->hops = hops;
    flow->cap = cap;
    flow->left = size;
    flow->since = net->clock;
    flow->rate = hops > 0 ? 0.0 : cap;
    for (int32_t hop = 0; hop < hops; hop++) {
        Link *link = &net->links[route[hop]];
        net->busy += link->count == 0;
        flow->links[hop] = route[hop];
        flow->links[hops + hop] = link->count;
        link->members[link->count++] = (Member){slot, hop};
        touch(net, route[hop]);
    }
    set_due(net, slot, due_at(flow->since, size, flow->rate));
    enlist(net, slot);
    return flow->id;
}

#endif
