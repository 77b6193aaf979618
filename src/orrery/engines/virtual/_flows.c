/* Max-min fair fluid flows: the compiled twin of flows_py.py, which says what everything means.
 *
 * This file is the Python face: arguments, errors, the type. The work is in _flows_core.h. Foreign
 * code (an argument's __index__, a tag's finaliser, a garbage collection) can call back into the
 * net, so every method reads its arguments first, then changes the net in one go, and makes or
 * drops Python objects last.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_flows_core.h"

typedef struct { int64_t id; PyObject *tag; double rate; } Row;

/* ---- errors and arguments */

/* Raises what flows_py.refusal makes, so that both twins use the same words. */
static void refuse(const char *kind, const char *path, PyObject *value, int64_t extra)
{
    PyObject *module = PyImport_ImportModule("orrery.engines.virtual.flows_py");
    if (module == NULL)
        return;
    PyObject *error = PyObject_CallMethod(module, "refusal", "ssOL", kind, path, value,
                                          (long long)extra);
    Py_DECREF(module);
    if (error != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
}

static void refuse_at(const char *kind, const char *path, Py_ssize_t place, PyObject *value,
                      int64_t extra)
{
    char text[64];
    PyOS_snprintf(text, sizeof text, "%s[%zd]", path, place);
    refuse(kind, text, value, extra);
}

static void refuse_time(const char *kind, int64_t now, int64_t extra)
{
    PyObject *value = PyLong_FromLongLong(now);
    if (value != NULL)
        refuse(kind, "now_ns", value, extra);
    Py_XDECREF(value);
}

/* 1: a double in [0, largest]; 0: not one, and no error is set; -1: foreign code raised. */
static int get_number(PyObject *value, double largest, double *number)
{
    *number = PyFloat_AsDouble(value);
    if (*number == -1.0 && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_TypeError) && !PyErr_ExceptionMatches(PyExc_ValueError)
            && !PyErr_ExceptionMatches(PyExc_OverflowError))
            return -1;
        PyErr_Clear();
        return 0;
    }
    return 0.0 <= *number && *number <= largest;
}

/* As get_number, for an int in [0, below). */
static int get_whole(PyObject *value, int64_t below, int64_t *number)
{
    PyObject *whole = PyNumber_Index(value);
    if (whole == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_TypeError))
            return -1;
        PyErr_Clear();
        return 0;
    }
    int overflow;
    *number = PyLong_AsLongLongAndOverflow(whole, &overflow);
    Py_DECREF(whole);
    return !overflow && 0 <= *number && *number < below;
}

static int take_number(const char *kind, const char *path, PyObject *value, double largest,
                       double *number)
{
    int ok = get_number(value, largest, number);
    if (ok == 0)
        refuse(kind, path, value, 0);
    return ok == 1;
}

static int take_whole(const char *kind, const char *path, PyObject *value, int64_t below,
                      int64_t *number)
{
    int ok = get_whole(value, below, number);
    if (ok == 0)
        refuse(kind, path, value, below);
    return ok == 1;
}

/* Sorts positional and keyword arguments into `out`; the first `least` must be there. */
static int unpack(const char *name, const char *const *names, int least, int most,
                  PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, PyObject **out)
{
    if (nargs > most) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most %d arguments (%zd given)", name, most,
                     nargs);
        return 0;
    }
    for (int i = 0; i < most; i++)
        out[i] = i < nargs ? args[i] : NULL;
    for (Py_ssize_t k = 0; kwnames != NULL && k < PyTuple_GET_SIZE(kwnames); k++) {
        PyObject *key = PyTuple_GET_ITEM(kwnames, k);
        int i = 0;
        while (i < most && PyUnicode_CompareWithASCIIString(key, names[i]) != 0)
            i++;
        if (i == most || out[i] != NULL) {
            PyErr_Format(PyExc_TypeError, "%s() got an unexpected or repeated argument '%U'", name,
                         key);
            return 0;
        }
        out[i] = args[nargs + k];
    }
    for (int i = 0; i < least; i++)
        if (out[i] == NULL) {
            PyErr_Format(PyExc_TypeError, "%s() misses its argument '%s'", name, names[i]);
            return 0;
        }
    return 1;
}

static int take_flow(const Net *net, PyObject *value, int32_t *slot)
{
    int64_t id;
    int ok = get_whole(value, INT64_MAX, &id);
    if (ok == 1 && (*slot = slot_of(net, id)) < 0)
        ok = 0;
    if (ok == 0)
        refuse("flow", "flow_id", value, 0);
    return ok == 1;
}

/* Moves the clock; what changed before is solved first, for the time that it held. */
static int advance(Net *net, int64_t now)
{
    if (now == net->clock)
        return 1;
    if (now < net->clock) {
        refuse_time("past", now, net->clock);
        return 0;
    }
    solve(net);
    int64_t due = min_due(net);
    if (due < now) {
        refuse_time("overdue", now, due);
        return 0;
    }
    net->clock = now;
    return 1;
}

/* ---- the methods */

#define TAKE(name, least, most, ...)                                                               \
    static const char *const names[] = {__VA_ARGS__};                                              \
    PyObject *given[most];                                                                         \
    if (!unpack(name, names, least, most, args, nargs, kwnames, given))                            \
        return NULL;
#define METHOD(name)                                                                               \
    static PyObject *net_##name(Net *net, PyObject *const *args, Py_ssize_t nargs,                 \
                                PyObject *kwnames)

/* Reads a route into new memory, or gives NULL with an error set. */
static int32_t *take_route(Net *net, PyObject *value, Py_ssize_t *hops)
{
    PyObject *given = PySequence_Tuple(value);
    if (given == NULL) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Clear();
            refuse("route", "links", value, 0);
        }
        return NULL;
    }
    *hops = PyTuple_GET_SIZE(given);
    int32_t *route = PyMem_Malloc((*hops + 1) * sizeof *route);
    int ok = route != NULL;
    if (!ok)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; ok == 1 && i < *hops; i++) {
        int64_t link = 0;
        ok = get_whole(PyTuple_GET_ITEM(given, i), net->link_count, &link);
        route[i] = (int32_t)link;
        if (ok == 0)
            refuse_at("link", "links", i, PyTuple_GET_ITEM(given, i), net->link_count);
    }
    uint64_t epoch = ++net->epoch;
    for (Py_ssize_t i = 0; ok == 1 && i < *hops; i++) {
        if (net->link_seen[route[i]] == epoch) {
            PyObject *link = PyLong_FromLong(route[i]);
            if (link != NULL)
                refuse_at("twice", "links", i, link, 0);
            Py_XDECREF(link);
            ok = 0;
        }
        net->link_seen[route[i]] = epoch;
    }
    Py_DECREF(given);
    if (ok == 1)
        return route;
    PyMem_Free(route);
    return NULL;
}

METHOD(start)
{
    TAKE("start", 3, 5, "now_ns", "links", "size_B", "cap_Bps", "tag")
    int64_t now;
    double size, cap = INFINITY;
    Py_ssize_t hops;
    if (!take_whole("time", "now_ns", given[0], FOREVER_NS, &now))
        return NULL;
    int32_t *route = take_route(net, given[1], &hops);
    if (route == NULL)
        return NULL;
    if (!take_number("size", "size_B", given[2], DBL_MAX, &size)
        || (given[3] != NULL && !take_number("cap", "cap_Bps", given[3], INFINITY, &cap))
        || !advance(net, now) || !make_room(net, route, hops)) {
        PyMem_Free(route);
        return NULL;
    }
    PyObject *tag = Py_NewRef(given[4] != NULL ? given[4] : Py_None);
    int64_t id = join(net, route, (int32_t)hops, size, cap, tag);
    PyMem_Free(route);
    return PyLong_FromLongLong(id);
}

METHOD(cancel)
{
    TAKE("cancel", 2, 2, "now_ns", "flow_id")
    int64_t now;
    int32_t slot;
    if (!take_whole("time", "now_ns", given[0], FOREVER_NS, &now)
        || !take_flow(net, given[1], &slot) || !advance(net, now))
        return NULL;
    double left = left_at(net, slot, now);
    PyObject *tag = leave(net, slot);
    Py_DECREF(tag);
    return PyFloat_FromDouble(left);
}

METHOD(set_capacity)
{
    TAKE("set_capacity", 3, 3, "now_ns", "link", "capacity_Bps")
    int64_t now, link;
    double capacity;
    if (!take_whole("time", "now_ns", given[0], FOREVER_NS, &now)
        || !take_whole("link", "link", given[1], net->link_count, &link)
        || !take_number("capacity", "capacity_Bps", given[2], DBL_MAX, &capacity)
        || !advance(net, now))
        return NULL;
    net->links[link].capacity = capacity;
    touch(net, (int32_t)link);
    Py_RETURN_NONE;
}

static int row_by_id(const void *a, const void *b)
{
    const Row *x = a, *y = b;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Takes the flows due by `now` off the net into new rows; gives their number, or -1. */
static Py_ssize_t take_due(Net *net, int64_t now, Row **rows)
{
    Py_ssize_t count = 0;
    for (;;) {
        solve(net);
        int64_t due = min_due(net);
        if (due > now)
            break;
        int32_t picked = pick_due(net, net->level_count - 1, 0, due, 0);
        if (!resize(rows, count + picked, sizeof **rows)) {
            while (count > 0)
                Py_DECREF((*rows)[--count].tag);
            return -1;
        }
        net->clock = due;
        for (int32_t i = 0; i < picked; i++) {
            int64_t id = net->flows[net->picked[i]].id;
            (*rows)[count + i] = (Row){id, leave(net, net->picked[i]), 0.0};
        }
        qsort(*rows + count, picked, sizeof **rows, row_by_id);
        count += picked;
        if (due == now) /* whatever is left ends later: the solve can wait for a question */
            break;
    }
    net->clock = now;
    return count;
}

METHOD(finish_due)
{
    TAKE("finish_due", 1, 1, "now_ns")
    int64_t now;
    if (!take_whole("time", "now_ns", given[0], FOREVER_NS, &now))
        return NULL;
    if (now < net->clock) {
        refuse_time("past", now, net->clock);
        return NULL;
    }
    Row *rows = NULL;
    Py_ssize_t count = take_due(net, now, &rows);
    PyObject *list = count < 0 ? NULL : PyList_New(0);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (list != NULL) {
            PyObject *pair = Py_BuildValue("(LO)", (long long)rows[i].id, rows[i].tag);
            if (pair == NULL || PyList_Append(list, pair) < 0)
                Py_CLEAR(list);
            Py_XDECREF(pair);
        }
        Py_DECREF(rows[i].tag);
    }
    PyMem_Free(rows);
    return list;
}

static PyObject *net_next_ns(Net *net, PyObject *Py_UNUSED(none))
{
    solve(net);
    return PyLong_FromLongLong(min_due(net));
}

METHOD(rate_Bps)
{
    TAKE("rate_Bps", 1, 1, "flow_id")
    int32_t slot;
    if (!take_flow(net, given[0], &slot))
        return NULL;
    solve(net);
    return PyFloat_FromDouble(net->flows[slot].rate);
}

METHOD(remaining_B)
{
    TAKE("remaining_B", 2, 2, "now_ns", "flow_id")
    int64_t now;
    int32_t slot;
    if (!take_whole("time", "now_ns", given[0], FOREVER_NS, &now)
        || !take_flow(net, given[1], &slot))
        return NULL;
    if (now < net->clock) {
        refuse_time("past", now, net->clock);
        return NULL;
    }
    solve(net);
    return PyFloat_FromDouble(left_at(net, slot, now));
}

METHOD(link_rate_Bps)
{
    TAKE("link_rate_Bps", 1, 1, "link")
    int64_t place;
    if (!take_whole("link", "link", given[0], net->link_count, &place))
        return NULL;
    solve(net);
    const Link *link = &net->links[place];
    for (int32_t m = 0; m < link->count; m++) { /* the work area is free between solves */
        int32_t slot = link->members[m].slot;
        net->found[m] = (Cap){net->flows[slot].rate, net->flows[slot].id, slot};
    }
    if (link->count > 1)
        qsort(net->found, link->count, sizeof *net->found, by_id);
    double total = 0.0;
    for (int32_t m = 0; m < link->count; m++)
        total += net->found[m].cap;
    return PyFloat_FromDouble(total);
}

static PyObject *net_rates(Net *net, PyObject *Py_UNUSED(none))
{
    solve(net);
    Py_ssize_t count = 0;
    Row *rows = PyMem_Malloc((net->live + 1) * sizeof *rows);
    if (rows == NULL)
        return PyErr_NoMemory();
    for (int32_t i = 0; i < net->order_count; i++) {
        const Flow *flow = &net->flows[net->order[i].slot];
        if (flow->id == net->order[i].id)
            rows[count++] = (Row){flow->id, NULL, flow->rate};
    }
    PyObject *rates = PyDict_New();
    for (Py_ssize_t i = 0; rates != NULL && i < count; i++) {
        PyObject *id = PyLong_FromLongLong(rows[i].id), *rate = PyFloat_FromDouble(rows[i].rate);
        if (id == NULL || rate == NULL || PyDict_SetItem(rates, id, rate) < 0)
            Py_CLEAR(rates);
        Py_XDECREF(id);
        Py_XDECREF(rate);
    }
    PyMem_Free(rows);
    return rates;
}

static Py_ssize_t net_len(Net *net)
{
    return net->live;
}

/* ---- the type and the module */

static int net_traverse(Net *net, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(net));
    for (int32_t slot = 0; slot < net->slots; slot++)
        if (net->flows[slot].id >= 0)
            Py_VISIT(net->flows[slot].tag);
    return 0;
}

static int net_clear(Net *net)
{
    for (int32_t slot = 0; slot < net->slots; slot++)
        if (net->flows[slot].id >= 0) { /* the flow stays: a finaliser may still ask the net */
            PyObject *tag = net->flows[slot].tag;
            net->flows[slot].tag = Py_NewRef(Py_None);
            Py_DECREF(tag);
        }
    return 0;
}

static void net_dealloc(Net *net)
{
    PyTypeObject *type = Py_TYPE(net);
    PyObject_GC_UnTrack(net);
    for (int32_t slot = 0; slot < net->slots; slot++) {
        PyMem_Free(net->flows[slot].links);
        if (net->flows[slot].id >= 0)
            Py_DECREF(net->flows[slot].tag);
    }
    for (int32_t link = 0; link < net->link_count; link++)
        PyMem_Free(net->links[link].members);
    for (int k = 0; k < MAX_LEVELS; k++) {
        PyMem_Free(net->levels[k].min);
        PyMem_Free(net->levels[k].todo);
        PyMem_Free(net->levels[k].stale);
    }
    void *arrays[] = {net->links, net->fill,  net->shares, net->link_seen, net->queue,
                      net->dirty, net->is_dirty, net->flows, net->seen, net->fixed,
                      net->picked, net->order, net->caps,  net->found};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        PyMem_Free(arrays[i]);
    type->tp_free(net);
    Py_DECREF(type);
}

/* Reads the capacities into new memory, or gives NULL with an error set. */
static Link *take_links(PyObject *value, int32_t *count)
{
    PyObject *given = PySequence_Tuple(value);
    if (given == NULL) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Clear();
            refuse("capacities", "capacities_Bps", value, 0);
        }
        return NULL;
    }
    Py_ssize_t links = PyTuple_GET_SIZE(given);
    Link *list = links < MAX_SLOTS ? PyMem_Calloc(links + 1, sizeof *list) : NULL;
    int ok = list != NULL;
    if (!ok)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; ok == 1 && i < links; i++) {
        ok = get_number(PyTuple_GET_ITEM(given, i), DBL_MAX, &list[i].capacity);
        if (ok == 0)
            refuse_at("capacity", "capacities_Bps", i, PyTuple_GET_ITEM(given, i), 0);
    }
    Py_DECREF(given);
    *count = (int32_t)links;
    if (ok == 1)
        return list;
    PyMem_Free(list);
    return NULL;
}

/* All set-up is here and none in tp_init, so that a second __init__ cannot shrink a live net. */
static PyObject *net_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"capacities_Bps", NULL};
    PyObject *capacities;
    int32_t count;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:FlowNet", names, &capacities))
        return NULL;
    Link *links = take_links(capacities, &count);
    if (links == NULL)
        return NULL;
    Net *net = (Net *)type->tp_alloc(type, 0);
    if (net == NULL) {
        PyMem_Free(links);
        return NULL;
    }
    net->links = links;
    net->link_count = count;
    net->free_slot = -1;
    size_t room = (size_t)count + 1;
    if (!resize(&net->fill, room, sizeof *net->fill)
        || !resize(&net->shares, room, sizeof *net->shares)
        || !resize(&net->queue, room, sizeof *net->queue)
        || !resize(&net->dirty, room, sizeof *net->dirty)
        || !resize(&net->link_seen, room, sizeof *net->link_seen)
        || !resize(&net->is_dirty, room, 1)) {
        Py_DECREF(net);
        return NULL;
    }
    memset(net->link_seen, 0, room * sizeof *net->link_seen);
    memset(net->is_dirty, 0, room);
    return (PyObject *)net;
}

#define FAST(name, signature, text)                                                                \
    {#name, (PyCFunction)(void (*)(void))net_##name, METH_FASTCALL | METH_KEYWORDS,                \
     #name "($self, " signature ")\n--\n\n" text}

static PyMethodDef net_methods[] = {
    FAST(start, "now_ns, links, size_B, cap_Bps=inf, tag=None",
         "Begin a flow and return its id; with no links, only its cap limits it."),
    FAST(cancel, "now_ns, flow_id", "End a flow early and return its bytes not yet sent."),
    FAST(set_capacity, "now_ns, link, capacity_Bps",
         "Change a link's capacity from now on; 0 stalls its flows."),
    FAST(finish_due, "now_ns",
         "Remove and return the flows complete at now as (id, tag), in order of ids."),
    FAST(rate_Bps, "flow_id", "The present rate of a flow."),
    FAST(remaining_B, "now_ns, flow_id",
         "Bytes of a flow not yet sent at now, if nothing changes before."),
    FAST(link_rate_Bps, "link",
         "The sum of the present rates on a link, added in order of flow ids."),
    {"next_ns", (PyCFunction)net_next_ns, METH_NOARGS,
     "next_ns($self)\n--\n\nThe time of the earliest completion at the present rates, or "
     "FOREVER_NS."},
    {"rates", (PyCFunction)net_rates, METH_NOARGS,
     "rates($self)\n--\n\nThe present rate of every flow, in order of ids."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot net_slots[] = {
    {Py_tp_doc, "FlowNet(capacities_Bps)\n--\n\n"
                "Fluid flows over links with capacities, shared max-min fairly."},
    {Py_tp_new, net_new},
    {Py_tp_dealloc, net_dealloc},
    {Py_tp_traverse, net_traverse},
    {Py_tp_clear, net_clear},
    {Py_tp_methods, net_methods},
    {Py_sq_length, net_len},
    {0, NULL},
};

static PyType_Spec net_spec = {
    .name = "orrery.engines.virtual._flows.FlowNet",
    .basicsize = sizeof(Net),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = net_slots,
};

static int flows_exec(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &net_spec, NULL);
    int failed = type == NULL || PyModule_AddObjectRef(module, "FlowNet", type) < 0;
    Py_XDECREF(type);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot flows_slots[] = {{Py_mod_exec, flows_exec}, {0, NULL}};

static struct PyModuleDef flows_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_flows",
    .m_doc = "Max-min fair fluid flows in C; `flows` is the door.",
    .m_slots = flows_slots,
};

PyMODINIT_FUNC PyInit__flows(void)
{
    return PyModuleDef_Init(&flows_module);
}
