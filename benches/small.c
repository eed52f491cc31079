/* A dict of small arrays as flax encodes it: what an encoder cannot do without, in C.
 *
 * Two walks, one that sums sizes and one that writes into the `bytes` that are returned. It knows
 * dicts of contiguous arrays alone, checks nothing else, and fits no other use.
 */
#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <Python.h>
#include <numpy/arrayobject.h>
#include <stdint.h>
#include <string.h>

/* The ext type of arrays; see `flax.serialization`. */
enum { NDARRAY = 1 };

static size_t uint_size(uint64_t value) {
    return value < 128 ? 1 : value < 256 ? 2 : value < 65536 ? 3 : value <= UINT32_MAX ? 5 : 9;
}

static size_t blob_head(size_t len) { return len < 256 ? 2 : len < 65536 ? 3 : 5; }

static size_t text_head(size_t len) { return len < 32 ? 1 : blob_head(len); }

static char *big_endian(char *out, uint64_t value, int bytes) {
    for (int at = bytes - 1; at >= 0; at--) *out++ = (char)(value >> (8 * at));
    return out;
}

/* A head of one of three codes in a row, by the size of what it tells. */
static char *head(char *out, uint8_t code, uint64_t value) {
    int wide = value < 256 ? 0 : value < 65536 ? 1 : 2;
    *out++ = (char)(code + wide);
    return big_endian(out, value, 1 << wide);
}

static char *write_uint(char *out, uint64_t value) {
    if (value < 128) {
        *out++ = (char)value;
        return out;
    }
    int wide = value < 256 ? 0 : value < 65536 ? 1 : value <= UINT32_MAX ? 2 : 3;
    *out++ = (char)(0xcc + wide);
    return big_endian(out, value, 1 << wide);
}

static char *write_text(char *out, const char *text, size_t len) {
    if (len < 32) *out++ = (char)(0xa0 + len);
    else out = head(out, 0xd9, len);
    memcpy(out, text, len);
    return out + len;
}

static size_t array_size(PyArrayObject *array, size_t dtype_len) {
    size_t size = 1 + 1 + text_head(dtype_len) + dtype_len;
    for (int dim = 0; dim < PyArray_NDIM(array); dim++)
        size += uint_size((uint64_t)PyArray_DIM(array, dim));
    size_t nbytes = (size_t)PyArray_NBYTES(array);
    return size + blob_head(nbytes) + nbytes;
}

/* encode(arrays, dtype): the bytes of a dict of arrays of this dtype. */
static PyObject *encode(PyObject *self, PyObject *args) {
    PyObject *dict;
    const char *dtype;
    Py_ssize_t dtype_len;
    if (!PyArg_ParseTuple(args, "O!s#", &PyDict_Type, &dict, &dtype, &dtype_len)) return NULL;
    size_t count = (size_t)PyDict_Size(dict);
    size_t size = count < 16 ? 1 : count < 65536 ? 3 : 5;
    PyObject *key, *value;
    Py_ssize_t at = 0, len;
    while (PyDict_Next(dict, &at, &key, &value)) {
        if (PyUnicode_AsUTF8AndSize(key, &len) == NULL) return NULL;
        if (!PyArray_CheckExact(value) || !PyArray_IS_C_CONTIGUOUS((PyArrayObject *)value)) {
            PyErr_SetString(PyExc_TypeError, "not a contiguous array");
            return NULL;
        }
        size_t inner = array_size((PyArrayObject *)value, (size_t)dtype_len);
        size += text_head((size_t)len) + (size_t)len + blob_head(inner) + 1 + inner;
    }
    PyObject *made = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (made == NULL) return NULL;
    char *out = PyBytes_AS_STRING(made);
    if (count < 16) *out++ = (char)(0x80 + count);
    else if (count < 65536) *out++ = (char)0xde, out = big_endian(out, count, 2);
    else *out++ = (char)0xdf, out = big_endian(out, count, 4);
    at = 0;
    while (PyDict_Next(dict, &at, &key, &value)) {
        PyArrayObject *array = (PyArrayObject *)value;
        const char *text = PyUnicode_AsUTF8AndSize(key, &len);
        out = write_text(out, text, (size_t)len);
        out = head(out, 0xc7, array_size(array, (size_t)dtype_len));
        *out++ = NDARRAY;
        *out++ = (char)0x93;
        *out++ = (char)(0x90 + PyArray_NDIM(array));
        for (int dim = 0; dim < PyArray_NDIM(array); dim++)
            out = write_uint(out, (uint64_t)PyArray_DIM(array, dim));
        out = write_text(out, dtype, (size_t)dtype_len);
        size_t nbytes = (size_t)PyArray_NBYTES(array);
        out = head(out, 0xc4, nbytes);
        memcpy(out, PyArray_DATA(array), nbytes);
        out += nbytes;
    }
    return made;
}

static PyMethodDef methods[] = {{"encode", encode, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "small", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit_small(void) {
    import_array();
    return PyModule_Create(&module);
}
