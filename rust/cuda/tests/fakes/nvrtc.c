/* A compiler that gives back its options and its source, and counts. A source with the word BROKEN
 * does not compile, and none does while FAKE_BROKEN is set. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { char *source; char *code; char log[256]; } Program;
static int compiles;

int fake_compiles(void) { return compiles; }

int nvrtcVersion(int *major, int *minor) {
    const char *given = getenv("FAKE_NVRTC");
    *major = given ? atoi(given) : 13;
    *minor = 2;
    return 0;
}
int nvrtcGetNumSupportedArchs(int *count) { *count = 4; return 0; }
int nvrtcGetSupportedArchs(int *archs) { int known[] = {75, 80, 90, 100}; memcpy(archs, known, sizeof known); return 0; }
const char *nvrtcGetErrorString(int error) { return error == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR_OTHER"; }

int nvrtcCreateProgram(Program **program, const char *source, const char *name, int headers, const char **texts,
                       const char **names) {
    (void)name, (void)headers, (void)texts, (void)names;
    *program = calloc(1, sizeof **program);
    (*program)->source = strdup(source);
    return 0;
}
int nvrtcDestroyProgram(Program **program) {
    free((*program)->source);
    free((*program)->code);
    free(*program);
    *program = NULL;
    return 0;
}
int nvrtcCompileProgram(Program *program, int count, const char **options) {
    ++compiles;
    if (strstr(program->source, "BROKEN") || getenv("FAKE_BROKEN")) {
        strcpy(program->log, "broken.cu(7): error: identifier \"BROKEN\" is undefined\n");
        return 6;
    }
    size_t room = strlen(program->source) + 4096;
    program->code = calloc(1, room);
    size_t used = snprintf(program->code, room, "%s", strstr(options[0], "compute_") ? "PTX" : "CUBIN");
    for (int i = 0; i < count; ++i) used += snprintf(program->code + used, room - used, " %s", options[i]);
    snprintf(program->code + used, room - used, "\n%s", program->source);
    strcpy(program->log, "ptxas info    : Compiling entry function 'mix_pilf' for 'sm_90a'\n"
                         "ptxas info    : Used 17 registers, used 0 barriers\n");
    return 0;
}
int nvrtcGetCUBINSize(Program *program, size_t *size) { *size = program->code ? strlen(program->code) : 0; return 0; }
int nvrtcGetCUBIN(Program *program, char *code) { memcpy(code, program->code, strlen(program->code)); return 0; }
int nvrtcGetPTXSize(Program *program, size_t *size) { *size = program->code ? strlen(program->code) + 1 : 0; return 0; }
int nvrtcGetPTX(Program *program, char *code) { strcpy(code, program->code); return 0; }
int nvrtcGetProgramLogSize(Program *program, size_t *size) { *size = strlen(program->log) + 1; return 0; }
int nvrtcGetProgramLog(Program *program, char *log) { strcpy(log, program->log); return 0; }
