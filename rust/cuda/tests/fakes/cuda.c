/* A driver without devices: it writes down what it is asked. Linked as libcuda.so, it stands in for the real one.
 *
 * Stream 0xCA is being captured, and waiting for stream 0xBAD fails. A kernel named `refused...` is not launched. The
 * letters after the last underscore of a kernel's name are its parameters: p address, i int, l long long, f float, m tensor map.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, NOT_FOUND = 500, INVALID = 1, NO_CONTEXT = 201, TOO_MANY = 701, ILLEGAL_ADDRESS = 700, BAD_IMAGE = 200 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *text;
static size_t length;

static void note(const char *line) {
    pthread_mutex_lock(&lock);
    size_t more = strlen(line) + 1;
    text = realloc(text, length + more + 1);
    memcpy(text + length, line, more - 1);
    text[length + more - 1] = '\n';
    text[length + more] = 0;
    length += more;
    pthread_mutex_unlock(&lock);
}

/* Returns what was noted since the last call; the caller copies it before the next. */
const char *fake_take(void) {
    static char *taken;
    pthread_mutex_lock(&lock);
    free(taken);
    taken = text ? text : calloc(1, 1);
    text = NULL;
    length = 0;
    pthread_mutex_unlock(&lock);
    return taken;
}

static int setting(const char *name, int otherwise) {
    const char *value = getenv(name);
    return value ? atoi(value) : otherwise;
}

typedef struct { int device; char *image; } Module;
typedef struct { Module *module; char name[64]; int dynamic; } Function;
static __thread void *stack[8];
static __thread int depth;

int cuInit(unsigned flags) { (void)flags; return setting("FAKE_INIT", OK); }
int cuDriverGetVersion(int *version) { *version = setting("FAKE_VERSION", 13000); return OK; }
int cuDeviceGetCount(int *count) { *count = setting("FAKE_DEVICES", 2); return OK; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return OK; }
int cuDeviceGetName(char *name, int size, int device) { snprintf(name, size, "Fake %d", device); return OK; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = (size_t)80 << 30; return OK; }

int cuDeviceGetAttribute(int *value, int which, int device) {
    (void)device;
    int capability = setting("FAKE_CAPABILITY", 90);
    switch (which) {
    case 75: *value = capability / 10; break;
    case 76: *value = capability % 10; break;
    case 16: *value = 132; break;
    case 97: *value = 232448; break;
    case 38: *value = 50 << 20; break;
    default: return INVALID;
    }
    return OK;
}

int cuGetErrorName(int error, const char **name) {
    switch (error) {
    case OK: *name = "CUDA_SUCCESS"; break;
    case 34: *name = "CUDA_ERROR_STUB_LIBRARY"; break;
    case TOO_MANY: *name = "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"; break;
    case ILLEGAL_ADDRESS: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; break;
    case NOT_FOUND: *name = "CUDA_ERROR_NOT_FOUND"; break;
    default: *name = NULL; return INVALID;
    }
    return OK;
}
int cuGetErrorString(int error, const char **words) { (void)error; *words = "the fake says so"; return OK; }

int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(0x1000L + device); note("retain"); return OK; }
int cuCtxGetCurrent(void **context) { *context = depth ? stack[depth - 1] : NULL; return OK; }
int cuCtxPushCurrent_v2(void *context) { stack[depth++] = context; note("push"); return OK; }
int cuCtxPopCurrent_v2(void **context) { *context = stack[--depth]; note("pop"); return OK; }
int cuThreadExchangeStreamCaptureMode(int *mode) {
    static __thread int now;
    int before = now;
    now = *mode;
    *mode = before;
    return OK;
}

int cuModuleLoadData(void **module, const void *image) {
    if (!depth) return NO_CONTEXT;
    if (strncmp(image, "CUBIN", 5) && strncmp(image, "PTX", 3)) return BAD_IMAGE;
    Module *made = malloc(sizeof *made);
    made->device = (int)((long)stack[depth - 1] - 0x1000);
    made->image = strdup(image);
    *module = made;
    char line[64];
    snprintf(line, sizeof line, "load on %d", made->device);
    note(line);
    return OK;
}
int cuModuleUnload(void *module) { (void)module; note("unload"); return OK; }

int cuModuleGetFunction(void **function, Module *module, const char *name) {
    if (!strstr(module->image, name)) return NOT_FOUND;
    Function *made = calloc(1, sizeof *made);
    made->module = module;
    snprintf(made->name, sizeof made->name, "%s", name);
    *function = made;
    return OK;
}
int cuFuncGetAttribute(int *value, int which, Function *function) {
    (void)function;
    *value = which == 0 ? 512 : which == 1 ? 1024 : 0; /* threads of a block, static shared memory */
    return OK;
}
int cuFuncSetAttribute(Function *function, int which, int value) {
    if (which != 8) return INVALID;
    function->dynamic = value;
    return OK;
}

int cuStreamIsCapturing(void *stream, int *status) { *status = stream == (void *)0xCA; return OK; }
int cuStreamSynchronize(void *stream) { note("wait"); return stream == (void *)0xBAD ? ILLEGAL_ADDRESS : OK; }

/* A tensor map holds here what it was asked for; a pitch that is no multiple of 16 is refused, as the real one does. */
int cuTensorMapEncodeTiled(unsigned long *map, int type, unsigned rank, void *address, const unsigned long *sides,
                           const unsigned long *pitches, const unsigned *box, const unsigned *steps, int interleave, int swizzle,
                           int promotion, int fill) {
    if ((unsigned long)map % 64 || type != 0 || rank != 2 || steps[0] != 1 || steps[1] != 1) return INVALID;
    if ((unsigned long)address % 16 || pitches[0] % 16 || interleave != 0 || swizzle != 3 || promotion != 3 || fill != 0)
        return INVALID;
    unsigned long words[] = {(unsigned long)address, sides[0], sides[1], pitches[0], box[0], box[1]};
    memcpy(map, words, sizeof words);
    return OK;
}

typedef struct { int id; char pad[4]; int value[16]; } Attribute;
typedef struct {
    unsigned gx, gy, gz, bx, by, bz, shared;
    void *stream;
    Attribute *attributes;
    unsigned count;
} Config;

int cuLaunchKernelEx(const Config *config, Function *function, void **parameters, void **extra) {
    (void)extra;
    char line[512];
    if (!depth || stack[depth - 1] != (void *)(0x1000L + function->module->device)) return NO_CONTEXT;
    if (!strncmp(function->name, "refused", 7)) return TOO_MANY;
    if (config->shared > 49152 && (int)config->shared > function->dynamic) return INVALID;
    int used = snprintf(line, sizeof line, "launch %s on %d, stream %lu, grid %u %u %u, block %u %u %u, shared %u", function->name,
                        function->module->device, (unsigned long)config->stream, config->gx, config->gy, config->gz, config->bx,
                        config->by, config->bz, config->shared);
    for (unsigned i = 0; i < config->count; ++i) { /* 6: may begin before the kernel ahead of it has ended */
        if (config->attributes[i].id != 6 || config->attributes[i].value[0] != 1) return INVALID;
        used += snprintf(line + used, sizeof line - used, ", early");
    }
    used += snprintf(line + used, sizeof line - used, ":");
    const char *kinds = strrchr(function->name, '_');
    for (int i = 0; kinds && kinds[1 + i]; ++i) {
        void *at = parameters[i];
        char *to = line + used;
        size_t room = sizeof line - used;
        switch (kinds[1 + i]) {
        case 'p': used += snprintf(to, room, " %#lx", *(unsigned long *)at); break;
        case 'i': used += snprintf(to, room, " %d", *(int *)at); break;
        case 'l': used += snprintf(to, room, " %lld", *(long long *)at); break;
        case 'f': used += snprintf(to, room, " %g", *(float *)at); break;
        case 'm': {
            unsigned long *map = at;
            if ((unsigned long)map % 64) return INVALID;
            used += snprintf(to, room, " [%#lx: %lu of %lu x %lu, %lu x %lu]", map[0], map[3], map[2], map[1], map[5], map[4]);
            break;
        }
        }
    }
    note(line);
    return OK;
}
