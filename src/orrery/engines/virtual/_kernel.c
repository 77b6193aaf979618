/* The event kernel in C: the twin of kernel_py.py.

   kernel_py.py is the contract and explains each rule; this file keeps its names and its order, and
   says only what is particular to C. Both push the same entries in the same order, draw the same
   random words and feed the same bytes to the digest.

   - The heap is 4-ary, of 32-byte structs; a message is a plain struct, not a Python object.
   - Awaitables implement am_send, so an await that is ready costs no StopIteration.
   - A task's waits carry its generation; stale wake-ups are dropped when they surface. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define FOREVER_NS INT64_MAX
#define GOLDEN 0x9E3779B97F4A7C15ULL
#define RPC_ASYNC 1
#define RPC_SENDER 2
#define DIGEST_WORDS (6 * 1024)
#define MAX_DEPTH 32

enum { DEAD = 0, ALIVE = 1, PAUSED = 2 };
enum { TIMER = 0, MESSAGE = 1, CALL = 2, DEADLINE = 3, READY = 4, ARRIVED = 5 };

/* Borrowed for the life of the module from the Python modules that define them. */
static PyObject *PartError, *Refused, *Cancelled, *DeadlineExceeded;
static PyObject *py_size_of, *py_drive, *py_below;
static PyObject *str_update, *str_arguments, *str_close, *str_send, *str_throw;

typedef struct KernelObject KernelObject;
typedef struct TaskObject TaskObject;
typedef struct CallObject CallObject;

typedef struct {
    PyObject_HEAD
    KernelObject *kernel;
    PyObject *id;
    PyObject *slots; /* rpc method -> Slot, shared by the hosts of one class */
    PyObject *rng;   /* made when first asked for, forgotten in a crash */
    TaskObject *tasks, *last_task;
    int index;
} HostObject;

typedef struct {
    PyObject_HEAD
    PyObject *rpc, *fn, *name;
    long flags;
    Py_ssize_t n_params;
    uint32_t mark;
} SlotObject;

struct TaskObject {
    PyObject_HEAD
    HostObject *host;
    PyObject *coro, *value, *error;
    PyObject *joiners; /* list of (task, generation) or NULL */
    CallObject *call;  /* the ask that this task answers */
    SlotObject *slot;
    CallObject *waits;
    TaskObject *prev, *next;
    uint64_t gen;
    int state; /* 0 running, 1 ended, 2 failed or cancelled */
    int linked;
};

struct CallObject {
    PyObject_HEAD
    HostObject *asker;
    SlotObject *slot;
    PyObject *args;
    TaskObject *task;
    uint64_t gen;
    int peer;
    int posted;
};

typedef struct {
    PyObject_HEAD
    PyObject *error;
} ThrowObject;

typedef struct {
    PyObject_HEAD
    PyObject *fn;
    int live;
    int node;
} TimerObject;

typedef struct Waiter {
    TaskObject *task;
    uint64_t gen;
} Waiter;

typedef struct {
    PyObject_HEAD
    KernelObject *kernel;
    PyObject *value;
    Waiter *waiters;
    Py_ssize_t count, room, limit;
    int flag;
} EventObject;

typedef struct {
    PyObject_HEAD
    KernelObject *kernel;
    PyObject **items;
    Py_ssize_t head, count, room;
    Waiter *getters;
    Py_ssize_t ghead, gcount, groom;
} QueueObject;

typedef struct {
    PyObject_HEAD
    KernelObject *kernel;
    Waiter *waiters;
    Py_ssize_t head, count, room;
    int held;
} LockObject;

typedef struct {
    PyObject_HEAD
    KernelObject *kernel;
    TaskObject *task;
    int64_t ns;
    int live, fired, armed;
} DeadlineObject;

/* One small awaitable for every wait but ask, deadline: what is waited for, and whether it yielded. */
typedef struct {
    PyObject_HEAD
    PyObject *target; /* Event, Queue, Lock or Task; NULL for a sleep */
    int64_t ns;
    int yielded;
} WaitObject;

typedef struct {
    SlotObject *slot;
    PyObject *args;
    CallObject *call;
    int64_t sent;
    int64_t size;
    int src, dst, is_reply;
} Msg;

typedef struct {
    int64_t when;
    uint64_t seq;
    void *what;    /* TaskObject, Msg, TimerObject, DeadlineObject or ReadyEntry */
    uint64_t tag;  /* kind in the low three bits, generation above */
} Entry;

typedef struct {
    TaskObject *task;
    uint64_t gen;
    PyObject *value;  /* NULL is None */
    PyObject *source; /* a Queue or Lock that wants the value back if the task is gone */
} ReadyEntry;

typedef struct {
    uint64_t key;
    int64_t a, b;
    double c;
} Cell; /* of the open-addressed tables; key 0 is empty, keys are stored plus one */

typedef struct {
    Cell *cells;
    size_t mask, used;
} Table;

typedef struct {
    int what_kind;
    void *what;
    uint64_t gen;
    int node;
} Held; /* an event that waits for a paused node */

struct KernelObject {
    PyObject_HEAD
    int64_t now;
    uint64_t seq;
    long long events, messages, bytes, delivered;
    Entry *heap;
    Py_ssize_t count, room;
    ReadyEntry *ready;
    Py_ssize_t rhead, rcount, rroom;
    TaskObject *current; /* borrowed: the task being run, or NULL */
    PyObject *hosts, *state, *side, *special;
    PyObject *failure, *resolve, *on_emit, *trace, *hasher, *hook, *wire, *link_of, *make_rng, *charge;
    PyObject *class_slots;
    int64_t digest[DIGEST_WORDS];
    Py_ssize_t digested;
    Py_ssize_t cancelled;
    Held *held;
    Py_ssize_t held_count, held_room;
    uint64_t *net_keys, *net_counts;
    int64_t *nic_free;
    Py_ssize_t n_hosts;
    Msg *free_msgs;
    Py_ssize_t n_free;
    Table links, last;
    /* the network */
    int mode, fifo, egress, cut, stopped;
    int immune;
    int64_t latency_ns, jitter_ns, round_ns, header;
    uint64_t drop32;
    double ns_per_byte;
};

static PyTypeObject KernelType, HostType, TaskType, CallType, EventType, QueueType, LockType,
    DeadlineType, WaitType, SlotType, TimerType, ThrowType, NothingType, StreamCoreType;
static PyObject *Nothing;

/* ---------------------------------------------------------------- random words */

static inline uint64_t mix64(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31);
}

static inline uint64_t mul_high(uint64_t a, uint64_t b)
{
#ifdef __SIZEOF_INT128__
    return (uint64_t)(((unsigned __int128)a * b) >> 64);
#else
    uint64_t al = (uint32_t)a, ah = a >> 32, bl = (uint32_t)b, bh = b >> 32;
    uint64_t ll = al * bl, lh = al * bh, hl = ah * bl, hh = ah * bh;
    uint64_t middle = (ll >> 32) + (uint32_t)lh + (uint32_t)hl;
    return hh + (lh >> 32) + (hl >> 32) + (middle >> 32);
#endif
}

/* ---------------------------------------------------------------- open-addressed tables */

static Cell *table_find(Table *t, uint64_t key)
{
    if (!t->cells)
        return NULL;
    size_t i = mix64(key) & t->mask;
    while (t->cells[i].key) {
        if (t->cells[i].key == key + 1)
            return &t->cells[i];
        i = (i + 1) & t->mask;
    }
    return NULL;
}

/* Makes room for one more; with `now` >= 0, cells whose time has passed are dropped on the way. */
static int table_reserve(Table *t, int64_t now)
{
    if (t->cells && (t->used + 1) * 2 <= t->mask + 1)
        return 0;
    size_t keep = 0;
    for (size_t i = 0; t->cells && i <= t->mask; i++)
        if (t->cells[i].key && (now < 0 || t->cells[i].a > now))
            keep++;
    size_t size = 4096;
    while (size < 4 * (keep + 1))
        size *= 2;
    Cell *cells = PyMem_Calloc(size, sizeof(Cell));
    if (!cells) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; t->cells && i <= t->mask; i++) {
        Cell *c = &t->cells[i];
        if (!c->key || !(now < 0 || c->a > now))
            continue;
        size_t j = mix64(c->key - 1) & (size - 1);
        while (cells[j].key)
            j = (j + 1) & (size - 1);
        cells[j] = *c;
    }
    PyMem_Free(t->cells);
    t->cells = cells;
    t->mask = size - 1;
    t->used = keep;
    return 0;
}

static Cell *table_add(Table *t, uint64_t key, int64_t now)
{
    if (table_reserve(t, now) < 0)
        return NULL;
    size_t i = mix64(key) & t->mask;
    while (t->cells[i].key)
        i = (i + 1) & t->mask;
    t->used++;
    t->cells[i].key = key + 1;
    return &t->cells[i];
}

/* ---------------------------------------------------------------- the heap */

#define BEFORE(x, y) ((x).when < (y).when || ((x).when == (y).when && (x).seq < (y).seq))

static void sift_down(Entry *heap, Py_ssize_t count, Py_ssize_t i, Entry e)
{
    for (;;) {
        Py_ssize_t child = 4 * i + 1, best, end;
        if (child >= count)
            break;
        best = child;
        end = child + 4 < count ? child + 4 : count;
        for (Py_ssize_t c = child + 1; c < end; c++)
            if (BEFORE(heap[c], heap[best]))
                best = c;
        if (!BEFORE(heap[best], e))
            break;
        heap[i] = heap[best];
        i = best;
    }
    heap[i] = e;
}

/* Takes ownership of `what`, also when it fails. */
static void discard(KernelObject *k, int kind, void *what);

static int push(KernelObject *k, int64_t when, void *what, int kind, uint64_t gen)
{
    if (k->count == k->room) {
        Py_ssize_t room = k->room ? 2 * k->room : 256;
        Entry *heap = PyMem_Realloc(k->heap, room * sizeof(Entry));
        if (!heap) {
            discard(k, kind, what);
            PyErr_NoMemory();
            return -1;
        }
        k->heap = heap;
        k->room = room;
    }
    Entry e = {when, ++k->seq, what, gen << 3 | (uint64_t)kind};
    Py_ssize_t i = k->count++;
    while (i > 0) {
        Py_ssize_t parent = (i - 1) / 4;
        if (!BEFORE(e, k->heap[parent]))
            break;
        k->heap[i] = k->heap[parent];
        i = parent;
    }
    k->heap[i] = e;
    return 0;
}

static Entry pop(KernelObject *k)
{
    Entry top = k->heap[0];
    Entry last = k->heap[--k->count];
    if (k->count)
        sift_down(k->heap, k->count, 0, last);
    return top;
}

/* ---------------------------------------------------------------- messages as structs */

static Msg *msg_new(KernelObject *k)
{
    Msg *m = k->free_msgs;
    if (m) {
        k->free_msgs = (Msg *)m->args;
        k->n_free--;
        return m;
    }
    return PyMem_Malloc(sizeof(Msg));
}

static void msg_free(KernelObject *k, Msg *m)
{
    PyObject *args = m->args;
    SlotObject *slot = m->slot;
    CallObject *call = m->call;
    if (k->n_free < 4096) {
        m->args = (PyObject *)k->free_msgs;
        k->free_msgs = m;
        k->n_free++;
    } else
        PyMem_Free(m);
    Py_XDECREF(args);
    Py_XDECREF(slot);
    Py_XDECREF(call);
}

static void ready_clear(ReadyEntry *r)
{
    Py_XDECREF(r->task);
    Py_XDECREF(r->value);
    Py_XDECREF(r->source);
}

static void discard(KernelObject *k, int kind, void *what)
{
    if (kind == MESSAGE || kind == ARRIVED)
        msg_free(k, what);
    else if (kind == READY) {
        ready_clear(what);
        PyMem_Free(what);
    } else
        Py_XDECREF((PyObject *)what);
}

/* ---------------------------------------------------------------- ready queue */

/* Steals nothing: task, value and source are borrowed. */
static int ready_add(KernelObject *k, TaskObject *task, uint64_t gen, PyObject *value,
                     PyObject *source)
{
    if (k->rcount == k->rroom) {
        Py_ssize_t room = k->rroom ? 2 * k->rroom : 64;
        ReadyEntry *ring = PyMem_Malloc(room * sizeof(ReadyEntry));
        if (!ring) {
            PyErr_NoMemory();
            return -1;
        }
        for (Py_ssize_t i = 0; i < k->rcount; i++)
            ring[i] = k->ready[(k->rhead + i) % k->rroom];
        PyMem_Free(k->ready);
        k->ready = ring;
        k->rroom = room;
        k->rhead = 0;
    }
    Py_ssize_t at = k->rhead + k->rcount++;
    if (at >= k->rroom)
        at -= k->rroom;
    Py_INCREF(task);
    Py_XINCREF(value);
    Py_XINCREF(source);
    k->ready[at] = (ReadyEntry){task, gen, value, source};
    return 0;
}

static PyObject *throw_new(PyObject *error)
{
    ThrowObject *t = PyObject_GC_New(ThrowObject, &ThrowType);
    if (t) {
        Py_INCREF(error);
        t->error = error;
        PyObject_GC_Track(t);
    }
    return (PyObject *)t;
}

/* Wakes a task with Cancelled(*args), before time goes on. */
static int ready_cancel(KernelObject *k, TaskObject *task, PyObject *arg)
{
    PyObject *error = arg ? PyObject_CallOneArg(Cancelled, arg) : PyObject_CallNoArgs(Cancelled);
    if (!error)
        return -1;
    PyObject *thrown = throw_new(error);
    Py_DECREF(error);
    if (!thrown)
        return -1;
    task->gen++;
    int bad = ready_add(k, task, task->gen, thrown, NULL);
    Py_DECREF(thrown);
    return bad;
}

/* ---------------------------------------------------------------- sizes on the wire */

static int64_t size_of(PyObject *v, int depth)
{
    PyTypeObject *type = Py_TYPE(v);
    if (v == Py_None || type == &PyBool_Type)
        return 1;
    if (type == &PyLong_Type || type == &PyFloat_Type)
        return 8;
    if (type == &PyUnicode_Type)
        return 4 + PyUnicode_GET_LENGTH(v);
    if (type == &PyBytes_Type)
        return 4 + PyBytes_GET_SIZE(v);
    if (type == &PyByteArray_Type)
        return 4 + PyByteArray_GET_SIZE(v);
    if (depth <= MAX_DEPTH) {
        int64_t total = 4, one;
        if (type == &PyTuple_Type || type == &PyList_Type) {
            Py_ssize_t n = PySequence_Fast_GET_SIZE(v);
            for (Py_ssize_t i = 0; i < n; i++) {
                if ((one = size_of(PySequence_Fast_GET_ITEM(v, i), depth + 1)) < 0)
                    return -1;
                total += one;
            }
            return total;
        }
        if (type == &PyDict_Type) {
            PyObject *key, *item;
            Py_ssize_t at = 0;
            while (PyDict_Next(v, &at, &key, &item)) {
                if ((one = size_of(key, depth + 1)) < 0)
                    return -1;
                total += one;
                if ((one = size_of(item, depth + 1)) < 0)
                    return -1;
                total += one;
            }
            return total;
        }
        if (type == &PyFrozenSet_Type || type == &PySet_Type) {
            PyObject *iter = PyObject_GetIter(v), *item;
            if (!iter)
                return -1;
            while ((item = PyIter_Next(iter))) {
                one = size_of(item, depth + 1);
                Py_DECREF(item);
                if (one < 0) {
                    Py_DECREF(iter);
                    return -1;
                }
                total += one;
            }
            Py_DECREF(iter);
            return PyErr_Occurred() ? -1 : total;
        }
    }
    PyObject *result = PyObject_CallFunction(py_size_of, "Oi", v, depth);
    if (!result)
        return -1;
    int64_t size = PyLong_AsLongLong(result);
    Py_DECREF(result);
    return size;
}

static int64_t size_of_value(PyObject *v)
{
    if (Py_TYPE(v) == &ThrowType) {
        PyObject *text = PyObject_Str(((ThrowObject *)v)->error);
        if (!text)
            return -1;
        int64_t size = 4 + PyUnicode_GET_LENGTH(text);
        Py_DECREF(text);
        return size;
    }
    return size_of(v, 0);
}

/* ---------------------------------------------------------------- sending */

static inline int state_of(KernelObject *k, int index)
{
    return PyByteArray_AS_STRING(k->state)[index];
}

static int64_t in_order(KernelObject *k, uint64_t key, int64_t when)
{
    Cell *cell = table_find(&k->last, key);
    if (!cell) {
        if (!(cell = table_add(&k->last, key, k->now)))
            return -1;
        cell->a = when;
        return when;
    }
    if (when <= cell->a)
        when = cell->a + 1;
    cell->a = when;
    return when;
}

static int find_link(KernelObject *k, int src, int dst, int64_t *latency, int64_t *jitter,
                     double *ns_per_byte)
{
    uint64_t key = (uint64_t)src << 32 | (uint32_t)dst;
    Cell *cell = table_find(&k->links, key);
    if (!cell) {
        PyObject *made = PyObject_CallFunction(k->link_of, "ii", src, dst);
        if (!made)
            return -1;
        long long a, b;
        double c;
        int good = PyArg_ParseTuple(made, "LLd", &a, &b, &c);
        Py_DECREF(made);
        if (!good || !(cell = table_add(&k->links, key, -1)))
            return -1;
        cell->a = a;
        cell->b = b;
        cell->c = c;
    }
    *latency = cell->a;
    *jitter = cell->b;
    *ns_per_byte = cell->c;
    return 0;
}

/* What a host's processor needs for a message: ns to wait, or -1 for an error. */
static int64_t charge(KernelObject *k, int host, int64_t size, int receiving)
{
    if (k->charge == Py_None)
        return 0;
    PyObject *wait = PyObject_CallFunction(k->charge, "iLO", host, (long long)size,
                                           receiving ? Py_True : Py_False);
    if (!wait)
        return -1;
    int64_t ns = PyLong_AsLongLong(wait);
    Py_DECREF(wait);
    return ns < 0 ? (PyErr_Occurred() ? -1 : 0) : ns;
}

/* When the message arrives: 0 and *when, 1 for a lost one, -1 for an error. */
static int travel(KernelObject *k, int src, int dst, int64_t size, int64_t extra, int64_t *when)
{
    int64_t busy_ns = charge(k, src, size, 0);
    if (busy_ns < 0)
        return -1;
    int64_t now = k->now + busy_ns;
    int outside = src >= k->immune || dst >= k->immune;
    if (k->cut && !outside) {
        int same = PyObject_RichCompareBool(PyList_GET_ITEM(k->side, src),
                                            PyList_GET_ITEM(k->side, dst), Py_EQ);
        if (same <= 0)
            return same < 0 ? -1 : 1;
    }
    int64_t latency = k->latency_ns, jitter = k->jitter_ns;
    double ns_per_byte = k->ns_per_byte;
    if (k->mode == 1 && find_link(k, src, dst, &latency, &jitter, &ns_per_byte) < 0)
        return -1;
    if (jitter || (k->drop32 && !outside)) {
        uint64_t word = mix64(k->net_keys[src] + ++k->net_counts[src] * GOLDEN);
        if ((word >> 32) < k->drop32 && !outside)
            return 1;
        uint64_t low = word & 0xFFFFFFFFu, j = (uint64_t)jitter;
        latency += (int64_t)(low * (j >> 32) + ((low * (j & 0xFFFFFFFFu)) >> 32));
    }
    int64_t sent = now;
    if (ns_per_byte) {
        int64_t busy = (int64_t)((double)size * ns_per_byte);
        if (k->egress) {
            if (k->nic_free[src] > sent)
                sent = k->nic_free[src];
            k->nic_free[src] = sent + busy;
        }
        sent += busy;
    }
    *when = sent + latency + extra;
    if (k->mode == 2)
        *when = ((now + 1) / k->round_ns + 1) * k->round_ns - 1 + extra;
    else if (k->fifo && jitter && !extra) { /* what a fault delays may be overtaken */
        *when = in_order(k, (uint64_t)src << 32 | (uint32_t)dst, *when);
        if (*when < 0)
            return -1;
    }
    return 0;
}

/* Borrows everything. */
static int send_one(KernelObject *k, int src, int dst, SlotObject *slot, PyObject *args,
                    CallObject *call, int64_t extra, int is_reply)
{
    int64_t size, when;
    PyObject *payload = args;
    if (k->wire != Py_None) {
        payload = PyObject_CallFunctionObjArgs(PyTuple_GET_ITEM(k->wire, 0), (PyObject *)slot, args,
                                               is_reply ? Py_True : Py_False, NULL);
        if (!payload)
            return -1;
        if (!PyBytes_Check(payload)) {
            Py_DECREF(payload);
            PyErr_SetString(PyExc_TypeError, "the wire codec must give bytes");
            return -1;
        }
        size = PyBytes_GET_SIZE(payload);
    } else {
        Py_INCREF(payload);
        if ((size = size_of_value(args)) < 0) {
            Py_DECREF(payload);
            return -1;
        }
    }
    size += k->header;
    k->messages++;
    k->bytes += size;
    if (src == dst)
        when = k->now + extra;
    else {
        int lost = travel(k, src, dst, size, extra, &when);
        if (lost) {
            Py_DECREF(payload);
            return lost < 0 ? -1 : 0;
        }
    }
    Msg *m = msg_new(k);
    if (!m) {
        Py_DECREF(payload);
        PyErr_NoMemory();
        return -1;
    }
    Py_INCREF(slot);
    Py_XINCREF(call);
    *m = (Msg){slot, payload, call, k->now, size, src, dst, is_reply};
    return push(k, when, m, MESSAGE, 0);
}

static int post(KernelObject *k, int src, int dst, SlotObject *slot, PyObject *args,
                CallObject *call, int is_reply)
{
    const char *special = PyByteArray_AS_STRING(k->special);
    if (!special[src] && !special[dst])
        return send_one(k, src, dst, slot, args, call, 0, is_reply);
    PyObject *copies = PyObject_CallFunction(k->hook, "iiOOO", src, dst, (PyObject *)slot, args,
                                             is_reply ? Py_True : Py_False);
    if (!copies)
        return -1;
    if (copies == Py_None) {
        Py_DECREF(copies);
        return send_one(k, src, dst, slot, args, call, 0, is_reply);
    }
    PyObject *fast = PySequence_Fast(copies, "the message hook must give None or a list");
    Py_DECREF(copies);
    if (!fast)
        return -1;
    int bad = 0;
    for (Py_ssize_t i = 0; !bad && i < PySequence_Fast_GET_SIZE(fast); i++) {
        long long extra;
        int to;
        PyObject *changed;
        PyObject *copy = PySequence_Fast_GET_ITEM(fast, i);
        if (!PyTuple_Check(copy) || !PyArg_ParseTuple(copy, "LiO", &extra, &to, &changed)) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_TypeError, "a copy is (extra_ns, destination, args)");
            bad = -1;
        } else
            bad = send_one(k, src, is_reply ? dst : to, slot, changed, call, extra, is_reply);
    }
    Py_DECREF(fast);
    return bad;
}

/* ---------------------------------------------------------------- digest */

static int digest_flush(KernelObject *k)
{
    if (!k->digested)
        return 0;
#if PY_BIG_ENDIAN
    for (Py_ssize_t i = 0; i < k->digested; i++)
        k->digest[i] = (int64_t)__builtin_bswap64((uint64_t)k->digest[i]);
#endif
    PyObject *bytes = PyBytes_FromStringAndSize((char *)k->digest, k->digested * 8);
    k->digested = 0;
    if (!bytes)
        return -1;
    PyObject *done = PyObject_CallMethodOneArg(k->hasher, str_update, bytes);
    Py_DECREF(bytes);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* ---------------------------------------------------------------- tasks */

static TaskObject *task_new(HostObject *host, PyObject *coro)
{
    TaskObject *t = PyObject_GC_New(TaskObject, &TaskType);
    if (!t)
        return NULL;
    Py_INCREF(host);
    Py_INCREF(coro);
    t->host = host;
    t->coro = coro;
    t->value = t->error = t->joiners = NULL;
    t->call = NULL;
    t->slot = NULL;
    t->waits = NULL;
    t->prev = t->next = NULL;
    t->gen = 0;
    t->state = t->linked = 0;
    PyObject_GC_Track(t);
    return t;
}

/* The host owns one reference to each task in its list. */
static void task_link(HostObject *h, TaskObject *t)
{
    Py_INCREF(t);
    t->prev = h->last_task;
    t->next = NULL;
    if (h->last_task)
        h->last_task->next = t;
    else
        h->tasks = t;
    h->last_task = t;
    t->linked = 1;
}

static void task_unlink(TaskObject *t)
{
    if (!t->linked)
        return;
    HostObject *h = t->host;
    if (t->prev)
        t->prev->next = t->next;
    else
        h->tasks = t->next;
    if (t->next)
        t->next->prev = t->prev;
    else
        h->last_task = t->prev;
    t->prev = t->next = NULL;
    t->linked = 0;
    Py_DECREF(t);
}

/* An unhandled error of a part ends the run. Borrows error. */
static int fail(KernelObject *k, HostObject *host, PyObject *error)
{
    if (k->failure == Py_None) {
        PyObject *pair = PyTuple_Pack(2, host->id, error);
        if (!pair)
            return -1;
        Py_SETREF(k->failure, pair);
    }
    return 0;
}

/* The current exception as an object with its traceback; NULL lets it pass (KeyboardInterrupt). */
static PyObject *caught(void)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception) && !PyErr_ExceptionMatches(Cancelled))
        return NULL;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace)
        PyException_SetTraceback(value, trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return value;
}

/* Borrows value and error (one of them NULL). */
static int task_end(KernelObject *k, TaskObject *t, PyObject *value, PyObject *error)
{
    int bad = 0;
    t->gen++;
    t->state = error ? 2 : 1;
    Py_XINCREF(value);
    Py_XSETREF(t->value, value);
    Py_XINCREF(error);
    Py_XSETREF(t->error, error);
    HostObject *host = t->host;
    Py_INCREF(t);
    task_unlink(t);
    k->current = NULL;
    int refused = error && PyObject_IsInstance(error, Refused) > 0;
    if (t->call && (!error || refused)) {
        if (error) {
            PyObject *thrown = throw_new(error);
            bad = thrown ? post(k, host->index, t->call->asker->index, t->slot, thrown, t->call, 1)
                         : -1;
            Py_XDECREF(thrown);
        } else
            bad = post(k, host->index, t->call->asker->index, t->slot, value, t->call, 1);
    } else if (error && !t->joiners && !(PyObject_IsInstance(error, Cancelled) > 0))
        bad = fail(k, host, error);
    if (!bad && t->joiners) {
        for (Py_ssize_t i = 0; !bad && i < PyList_GET_SIZE(t->joiners); i++) {
            PyObject *pair = PyList_GET_ITEM(t->joiners, i);
            bad = ready_add(k, (TaskObject *)PyTuple_GET_ITEM(pair, 0),
                            PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(pair, 1)), NULL, NULL);
        }
        Py_CLEAR(t->joiners);
    }
    Py_DECREF(t);
    return bad;
}

static int waiter_add(Waiter **ring, Py_ssize_t *head, Py_ssize_t *count, Py_ssize_t *room,
                      TaskObject *task)
{
    if (*count == *room) {
        Py_ssize_t bigger = *room ? 2 * *room : 4;
        Waiter *made = PyMem_Malloc(bigger * sizeof(Waiter));
        if (!made) {
            PyErr_NoMemory();
            return -1;
        }
        for (Py_ssize_t i = 0; i < *count; i++)
            made[i] = (*ring)[(*head + i) % *room];
        PyMem_Free(*ring);
        *ring = made;
        *room = bigger;
        *head = 0;
    }
    Py_INCREF(task);
    (*ring)[(*head + (*count)++) % *room] = (Waiter){task, task->gen};
    return 0;
}

/* Hands value to the first waiter that still waits: 1 done, 0 nobody there, -1 error. */
static int waiter_serve(KernelObject *k, Waiter *ring, Py_ssize_t *head, Py_ssize_t *count,
                        Py_ssize_t room, PyObject *value, PyObject *source)
{
    while (*count) {
        Waiter w = ring[*head];
        *head = (*head + 1) % room;
        (*count)--;
        if (w.task->gen == w.gen) {
            w.task->gen++;
            int bad = ready_add(k, w.task, w.task->gen, value, source);
            Py_DECREF(w.task);
            return bad < 0 ? -1 : 1;
        }
        Py_DECREF(w.task);
    }
    return 0;
}

static int deadline_arm(DeadlineObject *d, TaskObject *task)
{
    KernelObject *k = d->kernel;
    Py_INCREF(task);
    Py_XSETREF(d->task, task);
    d->live = d->armed = 1;
    Py_INCREF(d);
    return push(k, k->now + d->ns, d, DEADLINE, 0);
}

static int event_park(EventObject *e, TaskObject *task)
{
    Py_ssize_t head = 0;
    if (waiter_add(&e->waiters, &head, &e->count, &e->room, task) < 0)
        return -1;
    if (e->count > e->limit) {
        Py_ssize_t kept = 0, before = e->count;
        Waiter *dead = PyMem_Malloc(before * sizeof(Waiter));
        Py_ssize_t n_dead = 0;
        if (!dead) {
            PyErr_NoMemory();
            return -1;
        }
        for (Py_ssize_t i = 0; i < before; i++) {
            if (e->waiters[i].task->gen == e->waiters[i].gen)
                e->waiters[kept++] = e->waiters[i];
            else
                dead[n_dead++] = e->waiters[i];
        }
        e->count = kept;
        e->limit = 2 * kept > 32 ? 2 * kept : 32;
        for (Py_ssize_t i = 0; i < n_dead; i++)
            Py_DECREF(dead[i].task);
        PyMem_Free(dead);
    }
    return 0;
}

/* Parks a task on what its coroutine yielded. Steals wanted. */
static int park(KernelObject *k, TaskObject *t, PyObject *wanted)
{
    PyTypeObject *type = Py_TYPE(wanted);
    int bad = 0;
    if (type == &WaitType) {
        WaitObject *w = (WaitObject *)wanted;
        if (!w->target) {
            Py_INCREF(t);
            bad = push(k, k->now + w->ns, t, TIMER, t->gen);
        } else if (Py_TYPE(w->target) == &EventType)
            bad = event_park((EventObject *)w->target, t);
        else if (Py_TYPE(w->target) == &QueueType) {
            QueueObject *q = (QueueObject *)w->target;
            bad = waiter_add(&q->getters, &q->ghead, &q->gcount, &q->groom, t);
        } else if (Py_TYPE(w->target) == &LockType) {
            LockObject *l = (LockObject *)w->target;
            bad = waiter_add(&l->waiters, &l->head, &l->count, &l->room, t);
        } else { /* another task */
            TaskObject *other = (TaskObject *)w->target;
            if (!other->joiners)
                other->joiners = PyList_New(0);
            PyObject *pair = Py_BuildValue("(OK)", t, (unsigned long long)t->gen);
            bad = !other->joiners || !pair || PyList_Append(other->joiners, pair) < 0 ? -1 : 0;
            Py_XDECREF(pair);
        }
    } else if (type == &CallType) {
        CallObject *c = (CallObject *)wanted;
        Py_INCREF(t);
        Py_XSETREF(c->task, t);
        c->gen = t->gen;
        Py_INCREF(c);
        Py_XSETREF(t->waits, c);
    } else if (type == &DeadlineType) {
        bad = deadline_arm((DeadlineObject *)wanted, t);
        if (!bad)
            bad = ready_add(k, t, t->gen, NULL, NULL);
    } else {
        PyObject *text = PyUnicode_FromFormat(
            "a node awaited %R, which is not of this engine; await only what self gives "
            "(no asyncio, no threads)", wanted);
        PyObject *error = text ? PyObject_CallOneArg(PartError, text) : NULL;
        Py_XDECREF(text);
        bad = error ? task_end(k, t, NULL, error) : -1;
        Py_XDECREF(error);
        PyObject *closed = PyObject_CallMethodNoArgs(t->coro, str_close);
        if (!closed)
            PyErr_Clear();
        Py_XDECREF(closed);
    }
    Py_DECREF(wanted);
    return bad;
}

/* Borrows value (NULL is None). */
static int task_resume(KernelObject *k, TaskObject *t, PyObject *value)
{
    PyObject *result = NULL;
    PySendResult status;
    int bad;
    Py_INCREF(t);
    t->gen++;
    Py_CLEAR(t->waits);
    k->current = t;
    if (value && Py_TYPE(value) == &ThrowType) {
        result = PyObject_CallMethodOneArg(t->coro, str_throw, ((ThrowObject *)value)->error);
        status = result ? PYGEN_NEXT : PYGEN_ERROR;
        if (!result && PyErr_ExceptionMatches(PyExc_StopIteration)) {
            PyObject *type, *stop, *trace;
            PyErr_Fetch(&type, &stop, &trace);
            PyErr_NormalizeException(&type, &stop, &trace);
            result = PyObject_GetAttrString(stop, "value");
            Py_XDECREF(type);
            Py_XDECREF(stop);
            Py_XDECREF(trace);
            status = result ? PYGEN_RETURN : PYGEN_ERROR;
        }
    } else
        status = PyIter_Send(t->coro, value ? value : Py_None, &result);
    if (status == PYGEN_NEXT)
        bad = park(k, t, result);
    else if (status == PYGEN_RETURN) {
        bad = task_end(k, t, result, NULL);
        Py_DECREF(result);
    } else {
        PyObject *error = caught();
        bad = error ? task_end(k, t, NULL, error) : -1;
        Py_XDECREF(error);
    }
    k->current = NULL;
    Py_DECREF(t);
    return bad;
}

static int bounce(KernelObject *k, PyObject *source, PyObject *value);

static int hold(KernelObject *k, int node, int kind, void *what, uint64_t gen)
{
    if (k->held_count == k->held_room) {
        Py_ssize_t room = k->held_room ? 2 * k->held_room : 16;
        Held *held = PyMem_Realloc(k->held, room * sizeof(Held));
        if (!held) {
            discard(k, kind, what);
            PyErr_NoMemory();
            return -1;
        }
        k->held = held;
        k->held_room = room;
    }
    k->held[k->held_count++] = (Held){kind, what, gen, node};
    return 0;
}

/* Takes ownership of the entry's references. */
static int run_ready(KernelObject *k, ReadyEntry r)
{
    int bad = 0;
    int index = r.task->host->index;
    int state = state_of(k, index);
    if (r.task->gen != r.gen || r.task->state) {
        if (r.source && state != DEAD)
            bad = bounce(k, r.source, r.value);
    } else if (state == ALIVE)
        bad = task_resume(k, r.task, r.value);
    else if (state == PAUSED) {
        ReadyEntry *kept = PyMem_Malloc(sizeof(ReadyEntry));
        if (!kept) {
            ready_clear(&r);
            PyErr_NoMemory();
            return -1;
        }
        *kept = r;
        return hold(k, index, READY, kept, 0);
    }
    ready_clear(&r);
    return bad;
}

/* ---------------------------------------------------------------- delivery */

static int deliver(KernelObject *k, uint64_t seq, Msg *m)
{
    k->delivered++;
    int64_t *d = k->digest + k->digested;
    d[0] = k->now;
    d[1] = (int64_t)seq;
    d[2] = m->src;
    d[3] = m->dst;
    d[4] = (int64_t)(m->is_reply ? m->slot->mark ^ 0xFFFFFFFFu : m->slot->mark);
    d[5] = m->size;
    k->digested += 6;
    if (k->digested >= DIGEST_WORDS && digest_flush(k) < 0)
        return -1;
    if (k->trace != Py_None) {
        PyObject *row = Py_BuildValue("(LLKiiOLO)", (long long)m->sent, (long long)k->now,
                                      (unsigned long long)seq, m->src, m->dst, m->slot->name,
                                      (long long)m->size, m->is_reply ? Py_True : Py_False);
        int bad = row ? PyList_Append(k->trace, row) : -1;
        Py_XDECREF(row);
        if (bad < 0)
            return -1;
    }
    PyObject *args = m->args;
    Py_INCREF(args);
    if (k->wire != Py_None) {
        if (digest_flush(k) < 0) {
            Py_DECREF(args);
            return -1;
        }
        PyObject *done = PyObject_CallMethodOneArg(k->hasher, str_update, args);
        Py_XDECREF(done);
        PyObject *read = done ? PyObject_CallFunctionObjArgs(
                                    PyTuple_GET_ITEM(k->wire, 1), (PyObject *)m->slot, args,
                                    m->is_reply ? Py_True : Py_False, NULL)
                              : NULL;
        Py_DECREF(args);
        if (!read)
            return -1;
        args = read;
    }
    int bad = 0;
    if (m->is_reply) {
        TaskObject *task = m->call->task;
        if (task && task->gen == m->call->gen)
            bad = task_resume(k, task, args);
        Py_DECREF(args);
        return bad;
    }
    HostObject *host = (HostObject *)PyList_GET_ITEM(k->hosts, m->dst);
    SlotObject *slot = m->slot;
    PyObject *small[10], **stack = small, *sender = NULL;
    Py_ssize_t n = PyTuple_GET_SIZE(args), total = n + 1;
    if (n + 2 > 10 && !(stack = PyMem_Malloc((n + 2) * sizeof(PyObject *)))) {
        Py_DECREF(args);
        PyErr_NoMemory();
        return -1;
    }
    stack[0] = (PyObject *)host;
    for (Py_ssize_t i = 0; i < n; i++)
        stack[i + 1] = PyTuple_GET_ITEM(args, i);
    if (slot->flags & RPC_SENDER) {
        sender = PyLong_FromLong(m->src);
        stack[total++] = sender;
    }
    k->current = NULL;
    PyObject *result = PyObject_Vectorcall(slot->fn, stack, total, NULL);
    if (stack != small)
        PyMem_Free(stack);
    Py_XDECREF(sender);
    Py_DECREF(args);
    if (result && slot->flags & RPC_ASYNC) {
        PyObject *coro = result;
        PySendResult status = PyIter_Send(coro, Py_None, &result);
        if (status == PYGEN_NEXT) {
            TaskObject *t = task_new(host, coro);
            Py_DECREF(coro);
            if (!t) {
                Py_DECREF(result);
                return -1;
            }
            Py_XINCREF(m->call);
            t->call = m->call;
            Py_INCREF(slot);
            t->slot = slot;
            task_link(host, t);
            bad = park(k, t, result);
            Py_DECREF(t);
            return bad;
        }
        Py_DECREF(coro);
        if (status == PYGEN_ERROR)
            result = NULL;
    }
    if (!result) {
        PyObject *error = caught();
        if (!error)
            return -1;
        if (m->call && PyObject_IsInstance(error, Refused) > 0) {
            result = throw_new(error);
            bad = result ? 0 : -1;
        } else
            bad = fail(k, host, error);
        Py_DECREF(error);
        if (!result)
            return bad;
    }
    if (m->call)
        bad = post(k, m->dst, m->call->asker->index, slot, result, m->call, 1);
    Py_DECREF(result);
    return bad;
}

/* ---------------------------------------------------------------- the loop */

static int note_cancelled(KernelObject *k)
{
    k->cancelled++;
    if (k->cancelled <= 1024 || k->cancelled * 2 <= k->count)
        return 0;
    Py_ssize_t kept = 0, n_dead = 0;
    PyObject **dead = PyMem_Malloc(k->count * sizeof(PyObject *));
    if (!dead) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < k->count; i++) {
        Entry e = k->heap[i];
        if ((e.tag & 7) == DEADLINE && !((DeadlineObject *)e.what)->live)
            dead[n_dead++] = e.what;
        else
            k->heap[kept++] = e;
    }
    k->count = kept;
    for (Py_ssize_t i = kept > 1 ? (kept - 2) / 4 : -1; i >= 0; i--)
        sift_down(k->heap, kept, i, k->heap[i]);
    k->cancelled = 0;
    for (Py_ssize_t i = 0; i < n_dead; i++)
        Py_DECREF(dead[i]);
    PyMem_Free(dead);
    return 0;
}

/* An event for a node that is not alive: kept if paused, else dropped. Owns `what`. */
static int not_alive(KernelObject *k, int node, int kind, void *what, uint64_t gen)
{
    if (state_of(k, node) == PAUSED)
        return hold(k, node, kind, what, gen);
    discard(k, kind, what);
    return 0;
}

/* Runs one popped entry; owns its references. */
static int run_entry(KernelObject *k, Entry e)
{
    int kind = (int)(e.tag & 7), bad = 0, node;
    uint64_t gen = e.tag >> 3;
    if (kind == TIMER) {
        TaskObject *t = e.what;
        if (t->gen == gen) {
            node = t->host->index;
            if (state_of(k, node) != ALIVE)
                return not_alive(k, node, kind, e.what, gen);
            k->now = e.when;
            k->events++;
            bad = task_resume(k, t, NULL);
        }
        Py_DECREF(t);
    } else if (kind == MESSAGE || kind == ARRIVED) {
        Msg *m = e.what;
        k->now = e.when;
        if (state_of(k, m->dst) != ALIVE)
            return not_alive(k, m->dst, kind, e.what, gen);
        if (kind == MESSAGE && m->src != m->dst) {
            int64_t wait = charge(k, m->dst, m->size, 1);
            if (wait < 0) {
                msg_free(k, m);
                return -1;
            }
            if (wait > 0) /* the receiver's processor has to take it in first */
                return push(k, k->now + wait, m, ARRIVED, 0);
        }
        k->events++;
        bad = deliver(k, e.seq, m);
        msg_free(k, m);
    } else if (kind == CALL) {
        TimerObject *t = e.what;
        if (t->live) {
            if (t->node >= 0 && state_of(k, t->node) != ALIVE)
                return not_alive(k, t->node, kind, e.what, gen);
            k->now = e.when;
            k->events++;
            t->live = 0;
            PyObject *done = PyObject_CallNoArgs(t->fn);
            bad = done ? 0 : -1;
            Py_XDECREF(done);
        }
        Py_DECREF(t);
    } else if (kind == DEADLINE) {
        DeadlineObject *d = e.what;
        if (d->live) {
            node = d->task->host->index;
            if (state_of(k, node) != ALIVE)
                return not_alive(k, node, kind, e.what, gen);
            k->now = e.when;
            k->events++;
            d->fired = 1;
            d->live = 0;
            bad = ready_cancel(k, d->task, (PyObject *)d);
        } else
            k->cancelled--;
        Py_DECREF(d);
    } else { /* READY: a wake-up that waited for a paused node */
        ReadyEntry *r = e.what;
        node = r->task->host->index;
        if (state_of(k, node) != ALIVE)
            return not_alive(k, node, kind, e.what, gen);
        k->now = e.when;
        k->events++;
        bad = run_ready(k, *r);
        PyMem_Free(r);
    }
    return bad;
}

static const char *loop(KernelObject *k, int64_t until, long long limit)
{
    unsigned beat = 0;
    for (;;) {
        while (k->rcount) {
            ReadyEntry r = k->ready[k->rhead];
            if (++k->rhead == k->rroom)
                k->rhead = 0;
            k->rcount--;
            if (run_ready(k, r) < 0)
                return NULL;
        }
        if (k->failure != Py_None)
            return "failed";
        if (k->stopped)
            return "stopped";
        if (!k->count)
            return "quiet";
        if (k->heap[0].when > until) {
            k->now = until;
            return "until";
        }
        if (k->events >= limit)
            return "budget";
        if (run_entry(k, pop(k)) < 0)
            return NULL;
        if (!(++beat & 1023) && PyErr_CheckSignals() < 0)
            return NULL;
    }
}

static PyObject *kernel_run(KernelObject *k, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"until_ns", "max_events", NULL};
    long long until = FOREVER_NS, most = FOREVER_NS;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|LL", names, &until, &most))
        return NULL;
    long long limit = most < FOREVER_NS ? k->events + most : FOREVER_NS;
    const char *ended = loop(k, until, limit);
    k->current = NULL;
    if (!ended) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        if (digest_flush(k) < 0)
            PyErr_Clear();
        PyErr_Restore(type, value, trace);
        return NULL;
    }
    if (digest_flush(k) < 0)
        return NULL;
    return PyUnicode_FromString(ended);
}

/* ---------------------------------------------------------------- kernel methods */

static int index_of(KernelObject *k, PyObject *arg)
{
    long index = PyLong_AsLong(arg);
    if (index == -1 && PyErr_Occurred())
        return -1;
    if (index < 0 || index >= k->n_hosts) {
        PyErr_Format(PyExc_IndexError, "no host %ld", index);
        return -1;
    }
    return (int)index;
}

static PyObject *kernel_bind(KernelObject *k, PyObject *args)
{
    HostObject *host;
    PyObject *id;
    int index;
    if (!PyArg_ParseTuple(args, "O!iO", &HostType, &host, &index, &id))
        return NULL;
    if (index < 0 || index >= k->n_hosts)
        return PyErr_Format(PyExc_IndexError, "no host %d", index);
    PyObject *cls = (PyObject *)Py_TYPE(host);
    PyObject *slots = PyDict_GetItemWithError(k->class_slots, cls);
    if (!slots) {
        if (PyErr_Occurred() || !(slots = PyDict_New()))
            return NULL;
        int bad = PyDict_SetItem(k->class_slots, cls, slots);
        Py_DECREF(slots);
        if (bad < 0)
            return NULL;
    }
    Py_INCREF(slots);
    Py_XSETREF(host->slots, slots);
    Py_INCREF(k);
    Py_XSETREF(host->kernel, k);
    Py_INCREF(id);
    Py_XSETREF(host->id, id);
    host->index = index;
    Py_INCREF(host);
    if (PyList_SetItem(k->hosts, index, (PyObject *)host) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *kernel_add_host(KernelObject *k, PyObject *key_arg)
{
    uint64_t key = PyLong_AsUnsignedLongLong(key_arg);
    if (PyErr_Occurred())
        return NULL;
    Py_ssize_t n = k->n_hosts + 1;
    uint64_t *keys = PyMem_Realloc(k->net_keys, n * sizeof(uint64_t));
    if (keys)
        k->net_keys = keys;
    uint64_t *counts = PyMem_Realloc(k->net_counts, n * sizeof(uint64_t));
    if (counts)
        k->net_counts = counts;
    int64_t *nics = PyMem_Realloc(k->nic_free, n * sizeof(int64_t));
    if (nics)
        k->nic_free = nics;
    if (!keys || !counts || !nics)
        return PyErr_NoMemory();
    keys[n - 1] = key;
    counts[n - 1] = 0;
    nics[n - 1] = 0;
    PyObject *zero = PyLong_FromLong(0);
    int bad = !zero || PyList_Append(k->hosts, Py_None) < 0 || PyList_Append(k->side, zero) < 0 ||
              PyByteArray_Resize(k->state, n) < 0 || PyByteArray_Resize(k->special, n) < 0;
    Py_XDECREF(zero);
    if (bad)
        return NULL;
    PyByteArray_AS_STRING(k->state)[n - 1] = ALIVE;
    PyByteArray_AS_STRING(k->special)[n - 1] = 0;
    k->n_hosts = n;
    return PyLong_FromSsize_t(n - 1);
}

static void drop_held(KernelObject *k, int node)
{
    Py_ssize_t kept = 0, count = k->held_count;
    Held *held = k->held;
    k->held = NULL;
    k->held_count = k->held_room = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (held[i].node == node)
            discard(k, held[i].what_kind, held[i].what);
        else
            held[kept++] = held[i];
    }
    k->held = held;
    k->held_count = kept;
    k->held_room = count;
}

static PyObject *kernel_kill(KernelObject *k, PyObject *arg)
{
    int index = index_of(k, arg);
    if (index < 0)
        return NULL;
    PyByteArray_AS_STRING(k->state)[index] = DEAD;
    drop_held(k, index);
    PyObject *found = PyList_GET_ITEM(k->hosts, index);
    if (found == Py_None)
        Py_RETURN_NONE;
    HostObject *host = (HostObject *)found;
    Py_CLEAR(host->rng);
    while (host->tasks) {
        TaskObject *t = host->tasks;
        Py_INCREF(t);
        task_unlink(t);
        t->gen++;
        t->state = 2;
        PyObject *closed = PyObject_CallMethodNoArgs(t->coro, str_close);
        if (!closed) {
            if (!PyErr_ExceptionMatches(PyExc_Exception)) {
                Py_DECREF(t);
                return NULL;
            }
            PyErr_Clear(); /* a dying node's clean-up may fail; it is dead all the same */
        }
        Py_XDECREF(closed);
        Py_DECREF(t);
    }
    Py_RETURN_NONE;
}

static PyObject *kernel_revive(KernelObject *k, PyObject *arg)
{
    int index = index_of(k, arg);
    if (index < 0)
        return NULL;
    PyByteArray_AS_STRING(k->state)[index] = ALIVE;
    Py_RETURN_NONE;
}

static PyObject *kernel_pause(KernelObject *k, PyObject *arg)
{
    int index = index_of(k, arg);
    if (index < 0)
        return NULL;
    if (state_of(k, index) == ALIVE)
        PyByteArray_AS_STRING(k->state)[index] = PAUSED;
    Py_RETURN_NONE;
}

static PyObject *kernel_resume(KernelObject *k, PyObject *arg)
{
    int index = index_of(k, arg);
    if (index < 0)
        return NULL;
    if (state_of(k, index) != PAUSED)
        Py_RETURN_NONE;
    PyByteArray_AS_STRING(k->state)[index] = ALIVE;
    Py_ssize_t kept = 0;
    for (Py_ssize_t i = 0; i < k->held_count; i++) {
        Held h = k->held[i];
        if (h.node != index)
            k->held[kept++] = h;
        else if (push(k, k->now, h.what, h.what_kind, h.gen) < 0)
            return NULL;
    }
    k->held_count = kept;
    Py_RETURN_NONE;
}

static PyObject *kernel_call_at(KernelObject *k, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"when", "fn", "node", NULL};
    long long when;
    PyObject *fn;
    int node = -1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "LO|i", names, &when, &fn, &node))
        return NULL;
    if (node >= k->n_hosts)
        return PyErr_Format(PyExc_IndexError, "no host %d", node);
    TimerObject *t = PyObject_GC_New(TimerObject, &TimerType);
    if (!t)
        return NULL;
    Py_INCREF(fn);
    t->fn = fn;
    t->live = 1;
    t->node = node;
    PyObject_GC_Track(t);
    Py_INCREF(t);
    if (push(k, when > k->now ? when : k->now, t, CALL, 0) < 0) {
        Py_DECREF(t);
        return NULL;
    }
    return (PyObject *)t;
}

static PyObject *kernel_stop(KernelObject *k, PyObject *unused)
{
    k->stopped = 1;
    Py_RETURN_NONE;
}

static PyObject *kernel_open_asks(KernelObject *k, PyObject *unused)
{
    PyObject *found = PyList_New(0);
    for (Py_ssize_t i = 0; found && i < k->n_hosts; i++) {
        HostObject *host = (HostObject *)PyList_GET_ITEM(k->hosts, i);
        if ((PyObject *)host == Py_None)
            continue;
        for (TaskObject *t = host->tasks; t; t = t->next) {
            if (!t->waits || t->waits->gen != t->gen)
                continue;
            PyObject *row = Py_BuildValue("(OiO)", host->id, t->waits->peer, t->waits->slot->name);
            if (!row || PyList_Append(found, row) < 0)
                Py_CLEAR(found);
            Py_XDECREF(row);
            if (!found)
                break;
        }
    }
    return found;
}

static PyObject *kernel_digest_flush(KernelObject *k, PyObject *unused)
{
    if (digest_flush(k) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static int slot_init(SlotObject *s, PyObject *args, PyObject *kwargs);

static SlotObject *find_slot(KernelObject *k, PyObject *peer_arg, PyObject *method, int *peer)
{
    long index = PyLong_Check(peer_arg) ? PyLong_AsLong(peer_arg) : -1;
    PyObject *found = index >= 0 && index < k->n_hosts ? PyList_GET_ITEM(k->hosts, index) : Py_None;
    if (found == Py_None) {
        PyErr_Clear();
        PyErr_Format(PartError, "there is no node %R; ids are 0..%d", peer_arg, k->immune - 1);
        return NULL;
    }
    *peer = (int)index;
    HostObject *host = (HostObject *)found;
    PyObject *slot = PyDict_GetItemWithError(host->slots, method); /* borrowed */
    if (slot || PyErr_Occurred())
        return (SlotObject *)slot;
    PyObject *rpc = PyObject_CallFunctionObjArgs(k->resolve, (PyObject *)Py_TYPE(host), method, NULL);
    if (!rpc)
        return NULL;
    slot = PyObject_CallOneArg((PyObject *)&SlotType, rpc);
    Py_DECREF(rpc);
    if (!slot)
        return NULL;
    int bad = PyDict_SetItem(host->slots, method, slot);
    Py_DECREF(slot);
    return bad < 0 ? NULL : (SlotObject *)slot;
}

/* kernel.slot(peer, method) and kernel.post(src, dst, slot, args, None): for the engine's Python. */
static PyObject *kernel_slot(KernelObject *k, PyObject *args)
{
    PyObject *peer, *method;
    int index;
    if (!PyArg_ParseTuple(args, "OO", &peer, &method))
        return NULL;
    PyObject *slot = (PyObject *)find_slot(k, peer, method, &index);
    Py_XINCREF(slot);
    return slot;
}

static PyObject *kernel_post(KernelObject *k, PyObject *args)
{
    int src, dst;
    SlotObject *slot;
    PyObject *values, *call;
    if (!PyArg_ParseTuple(args, "iiO!O!O", &src, &dst, &SlotType, &slot, &PyTuple_Type, &values,
                          &call))
        return NULL;
    if (src < 0 || src >= k->n_hosts || dst < 0 || dst >= k->n_hosts)
        return PyErr_Format(PyExc_IndexError, "no host %d or %d", src, dst);
    if (call != Py_None && Py_TYPE(call) != &CallType)
        return PyErr_Format(PyExc_TypeError, "call must be None or a Call");
    if (post(k, src, dst, slot, values, call == Py_None ? NULL : (CallObject *)call, 0) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static int kernel_init(KernelObject *k, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"hosts", "net_keys", "hasher", "resolve", "on_emit", NULL};
    Py_ssize_t n;
    PyObject *keys, *hasher, *resolve, *on_emit;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "nO!OOO", names, &n, &PyList_Type, &keys,
                                     &hasher, &resolve, &on_emit))
        return -1;
    if (k->hosts) {
        PyErr_SetString(PyExc_RuntimeError, "a kernel is made once");
        return -1;
    }
    if (n < 0 || n > INT32_MAX || PyList_GET_SIZE(keys) < n) {
        PyErr_SetString(PyExc_ValueError, "one network key for each host, please");
        return -1;
    }
    k->n_hosts = n;
    k->immune = (int)n;
    k->net_keys = PyMem_Calloc(n + 1, sizeof(uint64_t));
    k->net_counts = PyMem_Calloc(n + 1, sizeof(uint64_t));
    k->nic_free = PyMem_Calloc(n + 1, sizeof(int64_t));
    k->hosts = PyList_New(n);
    k->side = PyList_New(n);
    k->state = PyByteArray_FromStringAndSize(NULL, n);
    k->special = PyByteArray_FromStringAndSize(NULL, n);
    k->class_slots = PyDict_New();
    if (!k->net_keys || !k->net_counts || !k->nic_free || !k->hosts || !k->side || !k->state ||
        !k->special || !k->class_slots) {
        if (!PyErr_Occurred())
            PyErr_NoMemory();
        return -1;
    }
    memset(PyByteArray_AS_STRING(k->state), ALIVE, n);
    memset(PyByteArray_AS_STRING(k->special), 0, n);
    for (Py_ssize_t i = 0; i < n; i++) {
        Py_INCREF(Py_None);
        PyList_SET_ITEM(k->hosts, i, Py_None);
        PyList_SET_ITEM(k->side, i, PyLong_FromLong(0));
        k->net_keys[i] = PyLong_AsUnsignedLongLong(PyList_GET_ITEM(keys, i));
        if (PyErr_Occurred())
            return -1;
    }
    PyObject **fields[] = {&k->failure, &k->trace,    &k->hook,  &k->wire,
                           &k->link_of, &k->make_rng, &k->charge};
    for (int i = 0; i < 7; i++) {
        Py_INCREF(Py_None);
        *fields[i] = Py_None;
    }
    Py_INCREF(hasher);
    k->hasher = hasher;
    Py_INCREF(resolve);
    k->resolve = resolve;
    Py_INCREF(on_emit);
    k->on_emit = on_emit;
    return 0;
}

#define VISIT_WAITERS(ring, head, count, room)                                                     \
    for (Py_ssize_t i_ = 0; i_ < (count); i_++)                                                    \
        Py_VISIT((ring)[((head) + i_) % (room)].task)

static int kernel_traverse(KernelObject *k, visitproc visit, void *arg)
{
    Py_VISIT(k->hosts);
    Py_VISIT(k->state);
    Py_VISIT(k->side);
    Py_VISIT(k->special);
    Py_VISIT(k->failure);
    Py_VISIT(k->resolve);
    Py_VISIT(k->on_emit);
    Py_VISIT(k->trace);
    Py_VISIT(k->hasher);
    Py_VISIT(k->hook);
    Py_VISIT(k->wire);
    Py_VISIT(k->link_of);
    Py_VISIT(k->make_rng);
    Py_VISIT(k->charge);
    Py_VISIT(k->class_slots);
    for (Py_ssize_t i = 0; i < k->rcount; i++) {
        ReadyEntry *r = &k->ready[(k->rhead + i) % k->rroom];
        Py_VISIT(r->task);
        Py_VISIT(r->value);
        Py_VISIT(r->source);
    }
    for (Py_ssize_t i = 0; i < k->count + k->held_count; i++) {
        int kind = i < k->count ? (int)(k->heap[i].tag & 7) : k->held[i - k->count].what_kind;
        void *what = i < k->count ? k->heap[i].what : k->held[i - k->count].what;
        if (kind == MESSAGE || kind == ARRIVED) {
            Msg *m = what;
            Py_VISIT(m->slot);
            Py_VISIT(m->args);
            Py_VISIT(m->call);
        } else if (kind == READY) {
            ReadyEntry *r = what;
            Py_VISIT(r->task);
            Py_VISIT(r->value);
            Py_VISIT(r->source);
        } else
            Py_VISIT((PyObject *)what);
    }
    return 0;
}

static int kernel_clear(KernelObject *k)
{
    while (k->count) {
        Entry e = k->heap[--k->count];
        discard(k, (int)(e.tag & 7), e.what);
    }
    while (k->held_count) {
        Held h = k->held[--k->held_count];
        discard(k, h.what_kind, h.what);
    }
    while (k->rcount) {
        ReadyEntry r = k->ready[k->rhead];
        k->rhead = (k->rhead + 1) % k->rroom;
        k->rcount--;
        ready_clear(&r);
    }
    Py_CLEAR(k->hosts);
    Py_CLEAR(k->failure);
    Py_CLEAR(k->resolve);
    Py_CLEAR(k->on_emit);
    Py_CLEAR(k->trace);
    Py_CLEAR(k->hasher);
    Py_CLEAR(k->hook);
    Py_CLEAR(k->wire);
    Py_CLEAR(k->link_of);
    Py_CLEAR(k->make_rng);
    Py_CLEAR(k->charge);
    Py_CLEAR(k->class_slots);
    return 0;
}

static void kernel_dealloc(KernelObject *k)
{
    PyObject_GC_UnTrack(k);
    kernel_clear(k);
    Py_CLEAR(k->side);
    Py_CLEAR(k->state);
    Py_CLEAR(k->special);
    PyMem_Free(k->heap);
    PyMem_Free(k->ready);
    PyMem_Free(k->held);
    PyMem_Free(k->net_keys);
    PyMem_Free(k->net_counts);
    PyMem_Free(k->nic_free);
    PyMem_Free(k->links.cells);
    PyMem_Free(k->last.cells);
    while (k->free_msgs) {
        Msg *m = k->free_msgs;
        k->free_msgs = (Msg *)m->args;
        PyMem_Free(m);
    }
    Py_TYPE(k)->tp_free((PyObject *)k);
}

static PyMethodDef kernel_methods[] = {
    {"bind", (PyCFunction)kernel_bind, METH_VARARGS, NULL},
    {"add_host", (PyCFunction)kernel_add_host, METH_O, NULL},
    {"kill", (PyCFunction)kernel_kill, METH_O, NULL},
    {"revive", (PyCFunction)kernel_revive, METH_O, NULL},
    {"pause", (PyCFunction)kernel_pause, METH_O, NULL},
    {"resume", (PyCFunction)kernel_resume, METH_O, NULL},
    {"call_at", (PyCFunction)(void (*)(void))kernel_call_at, METH_VARARGS | METH_KEYWORDS, NULL},
    {"stop", (PyCFunction)kernel_stop, METH_NOARGS, NULL},
    {"open_asks", (PyCFunction)kernel_open_asks, METH_NOARGS, NULL},
    {"digest_flush", (PyCFunction)kernel_digest_flush, METH_NOARGS, NULL},
    {"slot", (PyCFunction)kernel_slot, METH_VARARGS, NULL},
    {"post", (PyCFunction)kernel_post, METH_VARARGS, NULL},
    {"run", (PyCFunction)(void (*)(void))kernel_run, METH_VARARGS | METH_KEYWORDS, NULL},
    {NULL}};

#define K(field) offsetof(KernelObject, field)
static PyMemberDef kernel_members[] = {
    {"now", T_LONGLONG, K(now), 0, NULL},
    {"seq", T_ULONGLONG, K(seq), READONLY, NULL},
    {"events", T_LONGLONG, K(events), 0, NULL},
    {"messages", T_LONGLONG, K(messages), 0, NULL},
    {"bytes", T_LONGLONG, K(bytes), 0, NULL},
    {"delivered", T_LONGLONG, K(delivered), 0, NULL},
    {"hosts", T_OBJECT_EX, K(hosts), READONLY, NULL},
    {"state", T_OBJECT_EX, K(state), READONLY, NULL},
    {"side", T_OBJECT_EX, K(side), READONLY, NULL},
    {"special", T_OBJECT_EX, K(special), READONLY, NULL},
    {"failure", T_OBJECT_EX, K(failure), READONLY, NULL},
    {"resolve", T_OBJECT_EX, K(resolve), READONLY, NULL},
    {"on_emit", T_OBJECT_EX, K(on_emit), 0, NULL},
    {"hook", T_OBJECT_EX, K(hook), 0, NULL},
    {"link_of", T_OBJECT_EX, K(link_of), 0, NULL},
    {"make_rng", T_OBJECT_EX, K(make_rng), 0, NULL},
    {"charge", T_OBJECT_EX, K(charge), 0, NULL},
    {"stopped", T_INT, K(stopped), READONLY, NULL},
    {"mode", T_INT, K(mode), 0, NULL},
    {"immune", T_INT, K(immune), 0, NULL},
    {"latency_ns", T_LONGLONG, K(latency_ns), 0, NULL},
    {"jitter_ns", T_LONGLONG, K(jitter_ns), 0, NULL},
    {"round_ns", T_LONGLONG, K(round_ns), 0, NULL},
    {"header", T_LONGLONG, K(header), 0, NULL},
    {"drop32", T_ULONGLONG, K(drop32), 0, NULL},
    {"ns_per_byte", T_DOUBLE, K(ns_per_byte), 0, NULL},
    {NULL}};

/* Truth values that Python sets as bool. */
static PyObject *flag_get(KernelObject *k, void *at)
{
    return PyBool_FromLong(*(int *)((char *)k + (Py_ssize_t)(intptr_t)at));
}

static int flag_set(KernelObject *k, PyObject *value, void *at)
{
    int truth = value ? PyObject_IsTrue(value) : 0;
    if (truth < 0)
        return -1;
    *(int *)((char *)k + (Py_ssize_t)(intptr_t)at) = truth;
    return 0;
}

static PyObject *object_get(KernelObject *k, void *at)
{
    PyObject *value = *(PyObject **)((char *)k + (Py_ssize_t)(intptr_t)at);
    Py_INCREF(value);
    return value;
}

static int wire_set(KernelObject *k, PyObject *value, void *at)
{
    if (!value || (value != Py_None && !(PyTuple_Check(value) && PyTuple_GET_SIZE(value) == 2))) {
        PyErr_SetString(PyExc_TypeError, "wire is None or (encode, decode)");
        return -1;
    }
    Py_INCREF(value);
    Py_XSETREF(k->wire, value);
    return 0;
}

static int trace_set(KernelObject *k, PyObject *value, void *at)
{
    if (!value || (value != Py_None && !PyList_Check(value))) {
        PyErr_SetString(PyExc_TypeError, "trace is None or a list");
        return -1;
    }
    Py_INCREF(value);
    Py_XSETREF(k->trace, value);
    return 0;
}

static PyGetSetDef kernel_getset[] = {
    {"fifo", (getter)flag_get, (setter)flag_set, NULL, (void *)(intptr_t)K(fifo)},
    {"egress", (getter)flag_get, (setter)flag_set, NULL, (void *)(intptr_t)K(egress)},
    {"cut", (getter)flag_get, (setter)flag_set, NULL, (void *)(intptr_t)K(cut)},
    {"wire", (getter)object_get, (setter)wire_set, NULL, (void *)(intptr_t)K(wire)},
    {"trace", (getter)object_get, (setter)trace_set, NULL, (void *)(intptr_t)K(trace)},
    {NULL}};

static PyTypeObject KernelType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "orrery.engines.virtual._kernel.Kernel",
    .tp_basicsize = sizeof(KernelObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)kernel_init,
    .tp_dealloc = (destructor)kernel_dealloc,
    .tp_traverse = (traverseproc)kernel_traverse,
    .tp_clear = (inquiry)kernel_clear,
    .tp_methods = kernel_methods,
    .tp_members = kernel_members,
    .tp_getset = kernel_getset,
};

/* ---------------------------------------------------------------- slots, throws, timers */

static int slot_init(SlotObject *s, PyObject *args, PyObject *kwargs)
{
    PyObject *rpc, *fn, *name, *flags, *mark, *params;
    if (!PyArg_ParseTuple(args, "O", &rpc))
        return -1;
    fn = PyObject_GetAttrString(rpc, "fn");
    name = PyObject_GetAttrString(rpc, "name");
    flags = PyObject_GetAttrString(rpc, "flags");
    mark = PyObject_GetAttrString(rpc, "mark");
    params = PyObject_GetAttrString(rpc, "params");
    if (fn && name && flags && mark && params) {
        s->flags = PyLong_AsLong(flags);
        s->mark = (uint32_t)PyLong_AsUnsignedLong(mark);
        s->n_params = PyObject_Length(params);
        Py_INCREF(rpc);
        Py_XSETREF(s->rpc, rpc);
        Py_INCREF(fn);
        Py_XSETREF(s->fn, fn);
        Py_INCREF(name);
        Py_XSETREF(s->name, name);
    }
    Py_XDECREF(fn);
    Py_XDECREF(name);
    Py_XDECREF(flags);
    Py_XDECREF(mark);
    Py_XDECREF(params);
    return PyErr_Occurred() ? -1 : 0;
}

static int slot_traverse(SlotObject *s, visitproc visit, void *arg)
{
    Py_VISIT(s->rpc);
    Py_VISIT(s->fn);
    Py_VISIT(s->name);
    return 0;
}

static int slot_clear(SlotObject *s)
{
    Py_CLEAR(s->rpc);
    Py_CLEAR(s->fn);
    Py_CLEAR(s->name);
    return 0;
}

static void slot_dealloc(SlotObject *s)
{
    PyObject_GC_UnTrack(s);
    slot_clear(s);
    Py_TYPE(s)->tp_free((PyObject *)s);
}

static PyMemberDef slot_members[] = {
    {"rpc", T_OBJECT_EX, offsetof(SlotObject, rpc), READONLY, NULL},
    {"fn", T_OBJECT_EX, offsetof(SlotObject, fn), READONLY, NULL},
    {"name", T_OBJECT_EX, offsetof(SlotObject, name), READONLY, NULL},
    {"flags", T_LONG, offsetof(SlotObject, flags), READONLY, NULL},
    {"mark", T_UINT, offsetof(SlotObject, mark), READONLY, NULL},
    {"n_params", T_PYSSIZET, offsetof(SlotObject, n_params), READONLY, NULL},
    {NULL}};

static PyTypeObject SlotType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "orrery.engines.virtual._kernel.Slot",
    .tp_basicsize = sizeof(SlotObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)slot_init,
    .tp_dealloc = (destructor)slot_dealloc,
    .tp_traverse = (traverseproc)slot_traverse,
    .tp_clear = (inquiry)slot_clear,
    .tp_members = slot_members,
};

static int throw_traverse(ThrowObject *t, visitproc visit, void *arg)
{
    Py_VISIT(t->error);
    return 0;
}

static int throw_clear(ThrowObject *t)
{
    Py_CLEAR(t->error);
    return 0;
}

static void throw_dealloc(ThrowObject *t)
{
    PyObject_GC_UnTrack(t);
    throw_clear(t);
    PyObject_GC_Del(t);
}

static PyObject *throw_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *error;
    if (!PyArg_ParseTuple(args, "O", &error))
        return NULL;
    return throw_new(error);
}

static PyMemberDef throw_members[] = {
    {"error", T_OBJECT_EX, offsetof(ThrowObject, error), READONLY, NULL}, {NULL}};

static PyTypeObject ThrowType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "orrery.engines.virtual._kernel.Throw",
    .tp_basicsize = sizeof(ThrowObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = throw_make,
    .tp_dealloc = (destructor)throw_dealloc,
    .tp_traverse = (traverseproc)throw_traverse,
    .tp_clear = (inquiry)throw_clear,
    .tp_members = throw_members,
};

static int timer_traverse(TimerObject *t, visitproc visit, void *arg)
{
    Py_VISIT(t->fn);
    return 0;
}

static int timer_clear(TimerObject *t)
{
    Py_CLEAR(t->fn);
    return 0;
}

static void timer_dealloc(TimerObject *t)
{
    PyObject_GC_UnTrack(t);
    timer_clear(t);
    PyObject_GC_Del(t);
}

static PyObject *timer_cancel(TimerObject *t, PyObject *unused)
{
    t->live = 0;
    Py_RETURN_NONE;
}

static PyMethodDef timer_methods[] = {{"cancel", (PyCFunction)timer_cancel, METH_NOARGS, NULL},
                                      {NULL}};

static PyTypeObject TimerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "orrery.engines.virtual._kernel.Timer",
    .tp_basicsize = sizeof(TimerObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)timer_dealloc,
    .tp_traverse = (traverseproc)timer_traverse,
    .tp_clear = (inquiry)timer_clear,
    .tp_methods = timer_methods,
};

/* ---------------------------------------------------------------- awaitables */

/* iternext through am_send, for Python code that iterates an awaitable by hand. */
static PyObject *next_by_send(PyObject *self)
{
    PyObject *result;
    PySendResult status = Py_TYPE(self)->tp_as_async->am_send(self, Py_None, &result);
    if (status == PYGEN_NEXT)
        return result;
    if (status == PYGEN_RETURN) {
        if (result != Py_None) {
            PyObject *stop = PyObject_CallOneArg(PyExc_StopIteration, result);
            if (stop) {
                PyErr_SetObject(PyExc_StopIteration, stop);
                Py_DECREF(stop);
            }
        }
        Py_DECREF(result);
    }
    return NULL;
}

static PyObject *wait_new(PyObject *target, int64_t ns)
{
    WaitObject *w = PyObject_GC_New(WaitObject, &WaitType);
    if (!w)
        return NULL;
    Py_XINCREF(target);
    w->target = target;
    w->ns = ns;
    w->yielded = 0;
    if (target) /* a sleep holds nothing, so the collector need not know it */
        PyObject_GC_Track(w);
    return (PyObject *)w;
}

static int wait_traverse(WaitObject *w, visitproc visit, void *arg)
{
    Py_VISIT(w->target);
    return 0;
}

static int wait_clear(WaitObject *w)
{
    Py_CLEAR(w->target);
    return 0;
}

static void wait_dealloc(WaitObject *w)
{
    if (w->target)
        PyObject_GC_UnTrack(w);
    Py_CLEAR(w->target);
    PyObject_GC_Del(w);
}

static PyObject *queue_take(QueueObject *q)
{
    PyObject *item = q->items[q->head];
    q->head = (q->head + 1) % q->room;
    q->count--;
    return item;
}

static PySendResult wait_send(WaitObject *w, PyObject *value, PyObject **result)
{
    PyTypeObject *type = w->target ? Py_TYPE(w->target) : NULL;
    if (!w->yielded) {
        int ready = 0;
        if (type == &EventType)
            ready = ((EventObject *)w->target)->flag;
        else if (type == &QueueType)
            ready = ((QueueObject *)w->target)->count > 0;
        else if (type == &LockType)
            ready = !((LockObject *)w->target)->held;
        else if (type == &TaskType)
            ready = ((TaskObject *)w->target)->state != 0;
        if (!ready) {
            w->yielded = 1;
            Py_INCREF(w);
            *result = (PyObject *)w;
            return PYGEN_NEXT;
        }
        if (type == &EventType) {
            PyObject *kept = ((EventObject *)w->target)->value;
            value = kept ? kept : Py_None;
        } else if (type == &QueueType) {
            *result = queue_take((QueueObject *)w->target);
            return PYGEN_RETURN;
        }
    }
    if (type == &TaskType) {
        TaskObject *t = (TaskObject *)w->target;
        if (t->error) {
            Py_INCREF(t->error);
            PyErr_SetObject((PyObject *)Py_TYPE(t->error), t->error);
            Py_DECREF(t->error);
            *result = NULL;
            return PYGEN_ERROR;
        }
        value = t->value ? t->value : Py_None;
    } else if (type == &LockType) {
        ((LockObject *)w->target)->held = 1;
        value = w->target;
    }
    Py_INCREF(value);
    *result = value;
    return PYGEN_RETURN;
}

static PyAsyncMethods wait_async = {.am_await = PyObject_SelfIter, .am_send = (sendfunc)wait_send};

static PyTypeObject WaitType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "orrery.engines.virtual._kernel.Wait",
    .tp_basicsize = sizeof(WaitObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)wait_dealloc,
    .tp_traverse = (traverseproc)wait_traverse,
    .tp_clear = (inquiry)wait_clear,
    .tp_as_async = &wait_async,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = next_by_send,
};

static PySendResult nothing_send(PyObject *self, PyObject *value, PyObject **result)
{
    Py_INCREF(Py_None);
    *result = Py_None;
    return PYGEN_RETURN;
}

static PyAsyncMethods nothing_async = {.am_await = PyObject_SelfIter, .am_send = nothing_send};

static PyTypeObject NothingType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "orrery.engines.virtual._kernel.Nothing",
    .tp_basicsize = sizeof(PyObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_as_async = &nothing_async,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = next_by_send,
};

/* ---------------------------------------------------------------- ask */

static PySendResult call_send(CallObject *c, PyObject *value, PyObject **result)
{
    if (!c->posted) {
        KernelObject *k = c->asker->kernel;
        c->posted = 1;
        if (state_of(k, c->asker->index) != DEAD) {
            int bad = post(k, c->asker->index, c->peer, c->slot, c->args, c, 0);
            Py_CLEAR(c->args);
            if (bad < 0) {
                *result = NULL;
                return PYGEN_ERROR;
            }
        }
        Py_INCREF(c);
        *result = (PyObject *)c;
        return PYGEN_NEXT;
    }
    Py_INCREF(value);
    *result = value;
    return PYGEN_RETURN;
}

static int call_traverse(CallObject *c, visitproc visit, void *arg)
{
    Py_VISIT(c->asker);
    Py_VISIT(c->slot);
    Py_VISIT(c->args);
    Py_VISIT(c->task);
    return 0;
}

static int call_clear(CallObject *c)
{
    Py_CLEAR(c->args);
    Py_CLEAR(c->task);
    return 0;
}

static void call_dealloc(CallObject *c)
{
    PyObject_GC_UnTrack(c);
    call_clear(c);
    Py_CLEAR(c->slot);
    Py_CLEAR(c->asker);
    PyObject_GC_Del(c);
}

static PyAsyncMethods call_async = {.am_await = PyObject_SelfIter, .am_send = (sendfunc)call_send};

static PyTypeObject CallType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "orrery.engines.virtual._kernel.Call",
    .tp_basicsize = sizeof(CallObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)call_dealloc,
    .tp_traverse = (traverseproc)call_traverse,
    .tp_clear = (inquiry)call_clear,
    .tp_as_async = &call_async,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = next_by_send,
};

/* ---------------------------------------------------------------- task objects */

static PyObject *task_cancel(TaskObject *t, PyObject *unused)
{
    if (t->state == 0 && ready_cancel(t->host->kernel, t, NULL) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *task_await(TaskObject *t)
{
    return wait_new((PyObject *)t, 0);
}

static PyObject *task_done(TaskObject *t, void *unused)
{
    return PyBool_FromLong(t->state != 0);
}

static int task_traverse(TaskObject *t, visitproc visit, void *arg)
{
    Py_VISIT(t->host);
    Py_VISIT(t->coro);
    Py_VISIT(t->value);
    Py_VISIT(t->error);
    Py_VISIT(t->joiners);
    Py_VISIT(t->call);
    Py_VISIT(t->slot);
    Py_VISIT(t->waits);
    return 0;
}

static int task_clear(TaskObject *t)
{
    Py_CLEAR(t->value);
    Py_CLEAR(t->error);
    Py_CLEAR(t->joiners);
    Py_CLEAR(t->call);
    Py_CLEAR(t->waits);
    return 0;
}

static void task_dealloc(TaskObject *t)
{
    PyObject_GC_UnTrack(t);
    task_clear(t);
    Py_CLEAR(t->slot);
    Py_CLEAR(t->coro);
    Py_CLEAR(t->host);
    PyObject_GC_Del(t);
}

static PyMethodDef task_methods[] = {{"cancel", (PyCFunction)task_cancel, METH_NOARGS, NULL},
                                     {NULL}};
static PyGetSetDef task_getset[] = {{"done", (getter)task_done, NULL, NULL, NULL}, {NULL}};
static PyAsyncMethods task_async = {.am_await = (unaryfunc)task_await};

static PyTypeObject TaskType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "orrery.engines.virtual._kernel.Task",
    .tp_basicsize = sizeof(TaskObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)task_dealloc,
    .tp_traverse = (traverseproc)task_traverse,
    .tp_clear = (inquiry)task_clear,
    .tp_methods = task_methods,
    .tp_getset = task_getset,
    .tp_as_async = &task_async,
};

/* ---------------------------------------------------------------- event, queue, lock */

static KernelObject *kernel_arg(PyObject *args)
{
    KernelObject *k;
    if (!PyArg_ParseTuple(args, "O!", &KernelType, &k))
        return NULL;
    Py_INCREF(k);
    return k;
}

static int event_init(EventObject *e, PyObject *args, PyObject *kwargs)
{
    KernelObject *k = kernel_arg(args);
    if (!k)
        return -1;
    Py_XSETREF(e->kernel, k);
    e->limit = 32;
    return 0;
}

static PyObject *event_set(EventObject *e, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
    if (n + (names ? PyTuple_GET_SIZE(names) : 0) > 1)
        return PyErr_Format(PyExc_TypeError, "set() takes at most one value");
    if (e->flag)
        Py_RETURN_NONE;
    PyObject *value = n || names ? args[0] : Py_None;
    e->flag = 1;
    Py_INCREF(value);
    Py_XSETREF(e->value, value);
    Waiter *waiters = e->waiters;
    Py_ssize_t count = e->count;
    e->waiters = NULL;
    e->count = e->room = 0;
    int bad = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!bad)
            bad = ready_add(e->kernel, waiters[i].task, waiters[i].gen, value, NULL);
        Py_DECREF(waiters[i].task);
    }
    PyMem_Free(waiters);
    if (bad)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *event_unset(EventObject *e, PyObject *unused)
{
    e->flag = 0;
    Py_CLEAR(e->value);
    Py_RETURN_NONE;
}

static PyObject *event_is_set(EventObject *e, PyObject *unused)
{
    return PyBool_FromLong(e->flag);
}

static PyObject *wait_for(PyObject *self, PyObject *unused)
{
    return wait_new(self, 0);
}

static int event_traverse(EventObject *e, visitproc visit, void *arg)
{
    Py_VISIT(e->kernel);
    Py_VISIT(e->value);
    VISIT_WAITERS(e->waiters, 0, e->count, e->room);
    return 0;
}

static int event_clear(EventObject *e)
{
    while (e->count) {
        TaskObject *t = e->waiters[--e->count].task;
        Py_DECREF(t);
    }
    Py_CLEAR(e->value);
    Py_CLEAR(e->kernel);
    return 0;
}

static void event_dealloc(EventObject *e)
{
    PyObject_GC_UnTrack(e);
    event_clear(e);
    PyMem_Free(e->waiters);
    Py_TYPE(e)->tp_free((PyObject *)e);
}

static PyMethodDef event_methods[] = {
    {"set", (PyCFunction)(void (*)(void))event_set, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"clear", (PyCFunction)event_unset, METH_NOARGS, NULL},
    {"is_set", (PyCFunction)event_is_set, METH_NOARGS, NULL},
    {"wait", (PyCFunction)wait_for, METH_NOARGS, NULL},
    {NULL}};

static PyTypeObject EventType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "orrery.engines.virtual._kernel.Event",
    .tp_basicsize = sizeof(EventObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)event_init,
    .tp_dealloc = (destructor)event_dealloc,
    .tp_traverse = (traverseproc)event_traverse,
    .tp_clear = (inquiry)event_clear,
    .tp_methods = event_methods,
};

static int queue_init(QueueObject *q, PyObject *args, PyObject *kwargs)
{
    KernelObject *k = kernel_arg(args);
    if (!k)
        return -1;
    Py_XSETREF(q->kernel, k);
    return 0;
}

static int queue_room(QueueObject *q)
{
    if (q->count < q->room)
        return 0;
    Py_ssize_t room = q->room ? 2 * q->room : 8;
    PyObject **items = PyMem_Malloc(room * sizeof(PyObject *));
    if (!items) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < q->count; i++)
        items[i] = q->items[(q->head + i) % q->room];
    PyMem_Free(q->items);
    q->items = items;
    q->room = room;
    q->head = 0;
    return 0;
}

static PyObject *queue_put(QueueObject *q, PyObject *item)
{
    int served = waiter_serve(q->kernel, q->getters, &q->ghead, &q->gcount, q->groom, item,
                              (PyObject *)q);
    if (served < 0)
        return NULL;
    if (!served) {
        if (queue_room(q) < 0)
            return NULL;
        Py_INCREF(item);
        q->items[(q->head + q->count++) % q->room] = item;
    }
    Py_RETURN_NONE;
}

/* What was handed to a task that is gone goes to the next in line, or back to the front. */
static int bounce(KernelObject *k, PyObject *source, PyObject *value)
{
    if (Py_TYPE(source) == &QueueType) {
        QueueObject *q = (QueueObject *)source;
        PyObject *item = value ? value : Py_None;
        int served = waiter_serve(k, q->getters, &q->ghead, &q->gcount, q->groom, item, source);
        if (served)
            return served < 0 ? -1 : 0;
        if (queue_room(q) < 0)
            return -1;
        q->head = (q->head + q->room - 1) % q->room;
        q->count++;
        Py_INCREF(item);
        q->items[q->head] = item;
        return 0;
    }
    LockObject *l = (LockObject *)source;
    int served = waiter_serve(k, l->waiters, &l->head, &l->count, l->room, NULL, source);
    if (!served)
        l->held = 0;
    return served < 0 ? -1 : 0;
}

static Py_ssize_t queue_length(QueueObject *q)
{
    return q->count;
}

static int queue_traverse(QueueObject *q, visitproc visit, void *arg)
{
    Py_VISIT(q->kernel);
    for (Py_ssize_t i = 0; i < q->count; i++)
        Py_VISIT(q->items[(q->head + i) % q->room]);
    VISIT_WAITERS(q->getters, q->ghead, q->gcount, q->groom);
    return 0;
}

static int queue_clear(QueueObject *q)
{
    while (q->count) {
        PyObject *item = queue_take(q);
        Py_DECREF(item);
    }
    while (q->gcount) {
        TaskObject *t = q->getters[q->ghead].task;
        q->ghead = (q->ghead + 1) % q->groom;
        q->gcount--;
        Py_DECREF(t);
    }
    Py_CLEAR(q->kernel);
    return 0;
}

static void queue_dealloc(QueueObject *q)
{
    PyObject_GC_UnTrack(q);
    queue_clear(q);
    PyMem_Free(q->items);
    PyMem_Free(q->getters);
    Py_TYPE(q)->tp_free((PyObject *)q);
}

static PySequenceMethods queue_sequence = {.sq_length = (lenfunc)queue_length};

static PyMethodDef queue_methods[] = {{"put", (PyCFunction)queue_put, METH_O, NULL},
                                      {"get", (PyCFunction)wait_for, METH_NOARGS, NULL},
                                      {NULL}};

static PyTypeObject QueueType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "orrery.engines.virtual._kernel.Queue",
    .tp_basicsize = sizeof(QueueObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)queue_init,
    .tp_dealloc = (destructor)queue_dealloc,
    .tp_traverse = (traverseproc)queue_traverse,
    .tp_clear = (inquiry)queue_clear,
    .tp_as_sequence = &queue_sequence,
    .tp_methods = queue_methods,
};

static int lock_init(LockObject *l, PyObject *args, PyObject *kwargs)
{
    KernelObject *k = kernel_arg(args);
    if (!k)
        return -1;
    Py_XSETREF(l->kernel, k);
    return 0;
}

static PyObject *lock_exit(LockObject *l, PyObject *const *args, Py_ssize_t n)
{
    if (bounce(l->kernel, (PyObject *)l, NULL) < 0)
        return NULL;
    Py_INCREF(Nothing);
    return Nothing;
}

static int lock_traverse(LockObject *l, visitproc visit, void *arg)
{
    Py_VISIT(l->kernel);
    VISIT_WAITERS(l->waiters, l->head, l->count, l->room);
    return 0;
}

static int lock_clear(LockObject *l)
{
    while (l->count) {
        TaskObject *t = l->waiters[l->head].task;
        l->head = (l->head + 1) % l->room;
        l->count--;
        Py_DECREF(t);
    }
    Py_CLEAR(l->kernel);
    return 0;
}

static void lock_dealloc(LockObject *l)
{
    PyObject_GC_UnTrack(l);
    lock_clear(l);
    PyMem_Free(l->waiters);
    Py_TYPE(l)->tp_free((PyObject *)l);
}

static PyMethodDef lock_methods[] = {
    {"__aenter__", (PyCFunction)wait_for, METH_NOARGS, NULL},
    {"__aexit__", (PyCFunction)(void (*)(void))lock_exit, METH_FASTCALL, NULL},
    {NULL}};

static PyTypeObject LockType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "orrery.engines.virtual._kernel.Lock",
    .tp_basicsize = sizeof(LockObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)lock_init,
    .tp_dealloc = (destructor)lock_dealloc,
    .tp_traverse = (traverseproc)lock_traverse,
    .tp_clear = (inquiry)lock_clear,
    .tp_methods = lock_methods,
};

/* ---------------------------------------------------------------- deadline */

static PyObject *deadline_enter(DeadlineObject *d, PyObject *unused)
{
    /* A handler that never waited has no task yet: then the await below yields, and gets one. */
    if (d->armed || !d->kernel)
        return PyErr_Format(PartError, "a deadline is entered once; ask for another");
    if (d->kernel->current && deadline_arm(d, d->kernel->current) < 0)
        return NULL;
    Py_INCREF(d);
    return (PyObject *)d;
}

static PySendResult deadline_send(DeadlineObject *d, PyObject *value, PyObject **result)
{
    Py_INCREF(d);
    *result = (PyObject *)d;
    return d->armed ? PYGEN_RETURN : PYGEN_NEXT;
}

static PyObject *deadline_exit(DeadlineObject *d, PyObject *const *args, Py_ssize_t n)
{
    if (d->live) {
        d->live = 0;
        /* It waits in the heap until its time is over; the collector need not look at it there. */
        KernelObject *k = d->kernel;
        d->kernel = NULL;
        PyObject_GC_UnTrack(d);
        Py_CLEAR(d->task);
        int bad = note_cancelled(k);
        Py_DECREF(k);
        if (bad < 0)
            return NULL;
    }
    if (d->fired && n > 1 && PyObject_IsInstance(args[1], Cancelled) > 0) {
        PyObject *why = ((PyBaseExceptionObject *)args[1])->args;
        if (PyTuple_GET_SIZE(why) == 1 && PyTuple_GET_ITEM(why, 0) == (PyObject *)d) {
            char text[64];
            PyOS_snprintf(text, sizeof text, "deadline of %g s exceeded", (double)d->ns / 1e9);
            PyObject *error = PyObject_CallFunction(DeadlineExceeded, "s", text);
            if (error) {
                PyException_SetCause(error, NULL); /* as `raise … from None` */
                PyErr_SetObject(DeadlineExceeded, error);
                ((PyBaseExceptionObject *)error)->suppress_context = 1;
                Py_DECREF(error);
            }
            return NULL;
        }
    }
    Py_INCREF(Nothing);
    return Nothing;
}

static int deadline_traverse(DeadlineObject *d, visitproc visit, void *arg)
{
    Py_VISIT(d->kernel);
    Py_VISIT(d->task);
    return 0;
}

static int deadline_clear(DeadlineObject *d)
{
    if (!d->live) /* a live one sits in the heap, which needs its task */
        Py_CLEAR(d->task);
    return 0;
}

static void deadline_dealloc(DeadlineObject *d)
{
    PyObject_GC_UnTrack(d);
    Py_CLEAR(d->task);
    Py_CLEAR(d->kernel);
    PyObject_GC_Del(d);
}

static PyMethodDef deadline_methods[] = {
    {"__aenter__", (PyCFunction)deadline_enter, METH_NOARGS, NULL},
    {"__aexit__", (PyCFunction)(void (*)(void))deadline_exit, METH_FASTCALL, NULL},
    {NULL}};

static PyAsyncMethods deadline_async = {.am_await = PyObject_SelfIter,
                                        .am_send = (sendfunc)deadline_send};

static PyTypeObject DeadlineType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "orrery.engines.virtual._kernel.Deadline",
    .tp_basicsize = sizeof(DeadlineObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)deadline_dealloc,
    .tp_traverse = (traverseproc)deadline_traverse,
    .tp_clear = (inquiry)deadline_clear,
    .tp_methods = deadline_methods,
    .tp_as_async = &deadline_async,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = next_by_send,
};

/* ---------------------------------------------------------------- host */

static KernelObject *running(HostObject *h)
{
    if (!h->kernel)
        PyErr_SetString(PartError, "this node is not bound to an engine");
    return h->kernel;
}

static int64_t duration(PyObject *arg, const char *what)
{
    double s = PyFloat_AsDouble(arg);
    if (s == -1.0 && PyErr_Occurred())
        return -1;
    if (!(s >= 0)) {
        PyErr_Format(PartError, "%s(%R): give a number of seconds >= 0", what, arg);
        return -1;
    }
    if (s > 4.0e9) /* longer than any run; keeps the sum with now inside 64 bits */
        s = 4.0e9;
    return (int64_t)(s * 1e9 + 0.5);
}

static PyObject *host_now(HostObject *h, void *unused)
{
    KernelObject *k = running(h);
    return k ? PyFloat_FromDouble((double)k->now / 1e9) : NULL;
}

static PyObject *host_rng(HostObject *h, void *unused)
{
    KernelObject *k = running(h);
    if (k && !h->rng)
        h->rng = PyObject_CallFunction(k->make_rng, "i", h->index);
    Py_XINCREF(h->rng);
    return k ? h->rng : NULL;
}

static PyObject *host_sleep(HostObject *h, PyObject *arg)
{
    int64_t ns = duration(arg, "sleep");
    return ns < 0 ? NULL : wait_new(NULL, ns);
}

/* The full positional arguments of a message: args[2:], completed by the rpc where needed. */
static PyObject *arguments(SlotObject *slot, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
    PyObject *tuple = PyTuple_New(n - 2);
    if (!tuple)
        return NULL;
    for (Py_ssize_t i = 2; i < n; i++) {
        Py_INCREF(args[i]);
        PyTuple_SET_ITEM(tuple, i - 2, args[i]);
    }
    if (!names && n - 2 == slot->n_params)
        return tuple;
    PyObject *named = PyDict_New();
    for (Py_ssize_t i = 0; named && names && i < PyTuple_GET_SIZE(names); i++)
        if (PyDict_SetItem(named, PyTuple_GET_ITEM(names, i), args[n + i]) < 0)
            Py_CLEAR(named);
    PyObject *full = named ? PyObject_CallMethodObjArgs(slot->rpc, str_arguments, tuple, named, NULL)
                           : NULL;
    Py_XDECREF(named);
    Py_DECREF(tuple);
    if (full && !PyTuple_Check(full)) {
        Py_DECREF(full);
        PyErr_SetString(PyExc_TypeError, "arguments must be a tuple");
        return NULL;
    }
    return full;
}

static PyObject *host_tell(HostObject *h, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
    KernelObject *k = running(h);
    if (!k)
        return NULL;
    if (n < 2)
        return PyErr_Format(PartError, "tell(peer, method, …) needs a peer and a method");
    if (state_of(k, h->index) == DEAD)
        Py_RETURN_NONE;
    int peer;
    SlotObject *slot = find_slot(k, args[0], args[1], &peer);
    if (!slot)
        return NULL;
    PyObject *values = arguments(slot, args, n, names);
    if (!values)
        return NULL;
    int bad = post(k, h->index, peer, slot, values, NULL, 0);
    Py_DECREF(values);
    if (bad < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *host_ask(HostObject *h, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
    KernelObject *k = running(h);
    if (!k)
        return NULL;
    if (n < 2)
        return PyErr_Format(PartError, "ask(peer, method, …) needs a peer and a method");
    int peer;
    SlotObject *slot = find_slot(k, args[0], args[1], &peer);
    if (!slot)
        return NULL;
    PyObject *values = arguments(slot, args, n, names);
    if (!values)
        return NULL;
    CallObject *c = PyObject_GC_New(CallObject, &CallType);
    if (!c) {
        Py_DECREF(values);
        return NULL;
    }
    Py_INCREF(h);
    c->asker = h;
    Py_INCREF(slot);
    c->slot = slot;
    c->args = values;
    c->task = NULL;
    c->gen = UINT64_MAX;
    c->peer = peer;
    c->posted = 0;
    PyObject_GC_Track(c);
    return (PyObject *)c;
}

static PyObject *host_deadline(HostObject *h, PyObject *arg)
{
    KernelObject *k = running(h);
    int64_t ns = k ? duration(arg, "deadline") : -1;
    if (ns < 0)
        return NULL;
    DeadlineObject *d = PyObject_GC_New(DeadlineObject, &DeadlineType);
    if (!d)
        return NULL;
    Py_INCREF(k);
    d->kernel = k;
    d->task = NULL;
    d->ns = ns;
    d->live = d->fired = d->armed = 0;
    PyObject_GC_Track(d);
    return (PyObject *)d;
}

static PyObject *host_spawn(HostObject *h, PyObject *coro)
{
    KernelObject *k = running(h);
    if (!k)
        return NULL;
    if (PyObject_HasAttr(coro, str_send))
        Py_INCREF(coro);
    else if (!(coro = PyObject_CallOneArg(py_drive, coro)))
        return NULL;
    TaskObject *t = task_new(h, coro);
    if (t && state_of(k, h->index) == DEAD) {
        PyObject *closed = PyObject_CallMethodNoArgs(coro, str_close);
        Py_XDECREF(closed);
        t->state = 2;
        if (!closed)
            Py_CLEAR(t);
    } else if (t) {
        task_link(h, t);
        if (ready_add(k, t, 0, NULL, NULL) < 0)
            Py_CLEAR(t);
    }
    Py_DECREF(coro);
    return (PyObject *)t;
}

static PyObject *host_event(HostObject *h, PyObject *unused)
{
    KernelObject *k = running(h);
    return k ? PyObject_CallOneArg((PyObject *)&EventType, (PyObject *)k) : NULL;
}

static PyObject *host_queue(HostObject *h, PyObject *unused)
{
    KernelObject *k = running(h);
    return k ? PyObject_CallOneArg((PyObject *)&QueueType, (PyObject *)k) : NULL;
}

static PyObject *host_lock(HostObject *h, PyObject *unused)
{
    KernelObject *k = running(h);
    return k ? PyObject_CallOneArg((PyObject *)&LockType, (PyObject *)k) : NULL;
}

static PyObject *host_emit(HostObject *h, PyObject *args, PyObject *kwargs)
{
    KernelObject *k = running(h);
    if (!k)
        return NULL;
    if (PyTuple_GET_SIZE(args))
        return PyErr_Format(PyExc_TypeError, "emit() takes names: emit(delivered=value)");
    if (state_of(k, h->index) == DEAD)
        Py_RETURN_NONE;
    PyObject *values = kwargs ? PyDict_Copy(kwargs) : PyDict_New();
    if (!values)
        return NULL;
    PyObject *done = PyObject_CallFunction(k->on_emit, "LOO", (long long)k->now, h->id, values);
    Py_DECREF(values);
    return done;
}

static int host_traverse(HostObject *h, visitproc visit, void *arg)
{
    Py_VISIT(h->kernel);
    Py_VISIT(h->id);
    Py_VISIT(h->slots);
    Py_VISIT(h->rng);
    for (TaskObject *t = h->tasks; t; t = t->next)
        Py_VISIT(t);
    return 0;
}

static int host_clear(HostObject *h)
{
    while (h->tasks)
        task_unlink(h->tasks);
    Py_CLEAR(h->slots);
    Py_CLEAR(h->rng);
    return 0;
}

static void host_dealloc(HostObject *h)
{
    PyObject_GC_UnTrack(h);
    host_clear(h);
    Py_CLEAR(h->id);
    Py_CLEAR(h->kernel);
    Py_TYPE(h)->tp_free((PyObject *)h);
}

static PyMethodDef host_methods[] = {
    {"sleep", (PyCFunction)host_sleep, METH_O, NULL},
    {"tell", (PyCFunction)(void (*)(void))host_tell, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"ask", (PyCFunction)(void (*)(void))host_ask, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"deadline", (PyCFunction)host_deadline, METH_O, NULL},
    {"spawn", (PyCFunction)host_spawn, METH_O, NULL},
    {"event", (PyCFunction)host_event, METH_NOARGS, NULL},
    {"queue", (PyCFunction)host_queue, METH_NOARGS, NULL},
    {"lock", (PyCFunction)host_lock, METH_NOARGS, NULL},
    {"emit", (PyCFunction)(void (*)(void))host_emit, METH_VARARGS | METH_KEYWORDS, NULL},
    {NULL}};

static PyMemberDef host_members[] = {
    {"id", T_OBJECT_EX, offsetof(HostObject, id), READONLY, NULL},
    {"_index", T_INT, offsetof(HostObject, index), READONLY, NULL},
    {"_kernel", T_OBJECT_EX, offsetof(HostObject, kernel), READONLY, NULL},
    {NULL}};

static PyGetSetDef host_getset[] = {{"now", (getter)host_now, NULL, NULL, NULL},
                                    {"rng", (getter)host_rng, NULL, NULL, NULL},
                                    {NULL}};

static PyTypeObject HostType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "orrery.engines.virtual._kernel.Host",
    .tp_basicsize = sizeof(HostObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)host_dealloc,
    .tp_traverse = (traverseproc)host_traverse,
    .tp_clear = (inquiry)host_clear,
    .tp_methods = host_methods,
    .tp_members = host_members,
    .tp_getset = host_getset,
};

/* ---------------------------------------------------------------- random streams */

typedef struct {
    PyObject_HEAD
    uint64_t key, count;
} StreamObject;

static inline uint64_t stream_next(StreamObject *s)
{
    return mix64(s->key + ++s->count * GOLDEN);
}

static inline double stream_unit(StreamObject *s)
{
    return (double)(stream_next(s) >> 11) * (1.0 / 9007199254740992.0);
}

static PyObject *stream_word(StreamObject *s, PyObject *unused)
{
    return PyLong_FromUnsignedLongLong(stream_next(s));
}

static PyObject *stream_random(StreamObject *s, PyObject *unused)
{
    return PyFloat_FromDouble(stream_unit(s));
}

static PyObject *stream_small(StreamObject *s, PyObject *arg)
{
    /* below(n) for n that fits 64 bits; the Python method takes the rest */
    uint64_t n = PyLong_AsUnsignedLongLong(arg);
    if (n == UINT64_MAX && PyErr_Occurred())
        return NULL;
    if (!n) {
        PyErr_SetString(PyExc_ValueError, "below(0): there is no such number; give n >= 1");
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(mul_high(stream_next(s), n));
}

static PyObject *stream_below(StreamObject *s, PyObject *arg)
{
    int over;
    long long n = PyLong_AsLongLongAndOverflow(arg, &over);
    if (n == -1 && !over && PyErr_Occurred())
        return NULL;
    if (over || n <= 0) /* the Python method takes big numbers, and tells the fix for bad ones */
        return PyObject_CallFunctionObjArgs(py_below, (PyObject *)s, arg, NULL);
    return PyLong_FromUnsignedLongLong(mul_high(stream_next(s), (uint64_t)n));
}

static PyObject *stream_choice(StreamObject *s, PyObject *seq)
{
    Py_ssize_t n = PyObject_Length(seq);
    if (n < 0)
        return NULL;
    if (!n) {
        PyErr_SetString(PyExc_IndexError, "choice() of an empty sequence");
        return NULL;
    }
    Py_ssize_t i = (Py_ssize_t)mul_high(stream_next(s), (uint64_t)n);
    return PySequence_GetItem(seq, i);
}

static PyObject *stream_uniform(StreamObject *s, PyObject *const *args, Py_ssize_t n)
{
    if (n != 2)
        return PyErr_Format(PyExc_TypeError, "uniform(a, b)");
    double a = PyFloat_AsDouble(args[0]), b = PyFloat_AsDouble(args[1]);
    if (PyErr_Occurred())
        return NULL;
    return PyFloat_FromDouble(a + (b - a) * stream_unit(s));
}

static PyObject *stream_expovariate(StreamObject *s, PyObject *const *args, Py_ssize_t n)
{
    double rate = n ? PyFloat_AsDouble(args[0]) : 1.0;
    if (n > 1 || (rate == -1.0 && PyErr_Occurred()))
        return n > 1 ? PyErr_Format(PyExc_TypeError, "expovariate(rate)") : NULL;
    if (rate == 0.0) {
        PyErr_SetString(PyExc_ZeroDivisionError, "float division by zero");
        return NULL;
    }
    return PyFloat_FromDouble(-log(1.0 - stream_unit(s)) / rate);
}

static PyMethodDef stream_methods[] = {
    {"word", (PyCFunction)stream_word, METH_NOARGS, NULL},
    {"random", (PyCFunction)stream_random, METH_NOARGS, NULL},
    {"small", (PyCFunction)stream_small, METH_O, NULL},
    {"below", (PyCFunction)stream_below, METH_O, NULL},
    {"choice", (PyCFunction)stream_choice, METH_O, NULL},
    {"uniform", (PyCFunction)(void (*)(void))stream_uniform, METH_FASTCALL, NULL},
    {"expovariate", (PyCFunction)(void (*)(void))stream_expovariate, METH_FASTCALL, NULL},
    {NULL}};

static PyMemberDef stream_members[] = {
    {"key", T_ULONGLONG, offsetof(StreamObject, key), 0, NULL},
    {"count", T_ULONGLONG, offsetof(StreamObject, count), 0, NULL},
    {NULL}};

static PyTypeObject StreamCoreType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "orrery.engines.virtual._kernel.StreamCore",
    .tp_basicsize = sizeof(StreamObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_methods = stream_methods,
    .tp_members = stream_members,
};

/* ---------------------------------------------------------------- module */

static PyObject *fetch(const char *module, const char *name)
{
    PyObject *home = PyImport_ImportModule(module);
    PyObject *value = home ? PyObject_GetAttrString(home, name) : NULL;
    Py_XDECREF(home);
    return value;
}

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernel",
                                    "The event kernel in C; see kernel_py.py for the contract.", -1,
                                    NULL};

PyMODINIT_FUNC PyInit__kernel(void)
{
    struct {
        const char *name;
        PyTypeObject *type;
    } types[] = {{"Kernel", &KernelType},     {"Host", &HostType},         {"Task", &TaskType},
                 {"Call", &CallType},         {"Event", &EventType},       {"Queue", &QueueType},
                 {"Lock", &LockType},         {"Deadline", &DeadlineType}, {"Wait", &WaitType},
                 {"Slot", &SlotType},         {"Timer", &TimerType},       {"Throw", &ThrowType},
                 {"Nothing", &NothingType},   {"StreamCore", &StreamCoreType}};
    if (!(PartError = fetch("orrery.base.errors", "PartError")) ||
        !(Refused = fetch("orrery.base.errors", "Refused")) ||
        !(Cancelled = fetch("orrery.base.errors", "Cancelled")) ||
        !(DeadlineExceeded = fetch("orrery.base.errors", "DeadlineExceeded")) ||
        !(py_size_of = fetch("orrery.base.codec", "size_of")) ||
        !(py_drive = fetch("orrery.engines.virtual.kernel_py", "_drive")))
        return NULL;
    PyObject *draws = fetch("orrery.base.rand", "Draws");
    if (!draws || !(py_below = PyObject_GetAttrString(draws, "below")))
        return NULL;
    Py_DECREF(draws);
    str_update = PyUnicode_InternFromString("update");
    str_arguments = PyUnicode_InternFromString("arguments");
    str_close = PyUnicode_InternFromString("close");
    str_send = PyUnicode_InternFromString("send");
    str_throw = PyUnicode_InternFromString("throw");
    PyObject *m = PyModule_Create(&module);
    if (!m || !str_update || !str_arguments || !str_close || !str_send || !str_throw)
        return NULL;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (PyType_Ready(types[i].type) < 0 ||
            PyModule_AddObjectRef(m, types[i].name, (PyObject *)types[i].type) < 0)
            return NULL;
    }
    Nothing = (PyObject *)PyObject_New(PyObject, &NothingType);
    if (!Nothing || PyModule_AddStringConstant(m, "NAME", "c") < 0)
        return NULL;
    return m;
}
