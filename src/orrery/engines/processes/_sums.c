/* Sums of 64-bit words in 32 columns: the compiled twin of add_columns_py in checksum.py.
 *
 * A row is 256 bytes, so that all sums stay in registers while the words stream past: the arrays
 * are larger than the caches, and this is as fast as memory can be read.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

enum { ROW_B = 256, AHEAD_B = 2048 };

/* Two words side by side, at any address. */
typedef uint64_t Pair __attribute__((vector_size(16), aligned(1), may_alias));

static void add_all(const unsigned char *at, Py_ssize_t rows, Pair *sums)
{
    Pair s0 = sums[0], s1 = sums[1], s2 = sums[2], s3 = sums[3], s4 = sums[4], s5 = sums[5];
    Pair s6 = sums[6], s7 = sums[7], s8 = sums[8], s9 = sums[9], sa = sums[10], sb = sums[11];
    Pair sc = sums[12], sd = sums[13], se = sums[14], sf = sums[15];
    for (; rows > 0; rows--, at += ROW_B) {
        const Pair *row = (const Pair *)at;
        __builtin_prefetch(at + AHEAD_B);
        __builtin_prefetch(at + AHEAD_B + 64);
        __builtin_prefetch(at + AHEAD_B + 128);
        __builtin_prefetch(at + AHEAD_B + 192);
        s0 += row[0], s1 += row[1], s2 += row[2], s3 += row[3], s4 += row[4], s5 += row[5];
        s6 += row[6], s7 += row[7], s8 += row[8], s9 += row[9], sa += row[10], sb += row[11];
        sc += row[12], sd += row[13], se += row[14], sf += row[15];
    }
    sums[0] = s0, sums[1] = s1, sums[2] = s2, sums[3] = s3, sums[4] = s4, sums[5] = s5;
    sums[6] = s6, sums[7] = s7, sums[8] = s8, sums[9] = s9, sums[10] = sa, sums[11] = sb;
    sums[12] = sc, sums[13] = sd, sums[14] = se, sums[15] = sf;
}

PyDoc_STRVAR(add_columns_doc, "add_columns(data, sums)\n\n"
             "Add the 32 columns of words of the whole rows of 256 bytes to 32 sums, modulo 2**64.");

static PyObject *add_columns(PyObject *module, PyObject *args)
{
    (void)module;
    Py_buffer data, sums;
    if (!PyArg_ParseTuple(args, "y*w*", &data, &sums))
        return NULL;
    int fits = sums.len == ROW_B;
    if (fits)
        add_all(data.buf, data.len / ROW_B, sums.buf);
    PyBuffer_Release(&data);
    PyBuffer_Release(&sums);
    if (!fits)
        return PyErr_Format(PyExc_ValueError, "the sums must be %d bytes", ROW_B);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"add_columns", add_columns, METH_VARARGS, add_columns_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_sums", "Column sums of arrays on the bulk lane.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__sums(void)
{
    return PyModule_Create(&module);
}
