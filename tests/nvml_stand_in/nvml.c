/* A libnvidia-ml.so.1 for machines without a GPU: the part of NVML's C interface that rankscope calls through pynvml.

   Four handles, all with fixed readings:

     STRAINED  GPU-...-01   throttled: hw_slowdown and sw_thermal_slowdown, beside clocks set on purpose; NVLink, bit
                            errors, remapped rows; it has performance counters (GPM)
     QUIET     GPU-...-02   idle, not throttled; power needs a permission that the caller does not have; no NVLink, no
                            ECC, no GPM, and counters of PCIe bytes that have 32 bits
     SLICED    GPU-...-03   a board in MIG mode: no utilization
     SLICE     MIG-...-04   a slice of SLICED, GPU instance 7: it has memory only, the rest is asked of its board

   What it does is chosen by environment variables, each a number, read at nvmlInit:

     STAND_IN_INIT_RESULT        what nvmlInit returns (9: driver not loaded)
     STAND_IN_LOST_FROM_CALL     from this device call on, counted from 1, STRAINED has fallen off the bus ...
     STAND_IN_LOST_UNTIL_CALL    ... until this one, which sees it again

     STAND_IN_LOST_RESULT        what its calls return meanwhile, instead of that it is lost
     STAND_IN_NO_EVENTS          what nvmlDeviceRegisterEvents returns (4: no permission)
     STAND_IN_POWER_RESULT       what setting the power limit returns (4: no permission)
     STAND_IN_POWER_FILE         (a path) the file that has the power limit in milliwatts
     STAND_IN_PROCESSES_FILE     (a path) the file that has who holds the boards, read at each call: lines `process INDEX
                                 PID BYTES`, and `utilization INDEX PERCENT` in place of the fixed one

   Compiled with -DOLD_DRIVER it lacks the functions that came with drivers 510 (memory, second version), 520 (GPM) and
   535 (clock event reasons). The stand_in_ functions at the end let a test count, and let it make an Xid error happen. */

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    ARGUMENT_VERSION_MISMATCH = 25,
};

enum { STRAINED, QUIET, SLICED, SLICE, DEVICE_COUNT };

enum { CLOCK_GRAPHICS = 0, CLOCK_SM = 1, CLOCK_MEMORY = 2, SENSOR_GPU = 0 };

enum { SLICE_INSTANCE = 7 };

#define MIB (1024ULL * 1024ULL)

/* What the driver keeps for itself: the first version of the memory call counts it as used, the second does not. */
#define RESERVED_BYTES (512 * MIB)

typedef struct {
    const char *uuid;
    const char *name;
    unsigned int utilization_percent;
    unsigned long long used_bytes, total_bytes;
    unsigned int milliwatts, celsius, sm_megahertz;
    unsigned long long clock_reasons;
} device_t;

static const device_t devices[DEVICE_COUNT] = {
    {"GPU-00000000-0000-0000-0000-000000000001", "Stand-in Strained", 97, 60000 * MIB, 80000 * MIB, 699500, 88, 1230,
     0x02 | 0x08 | 0x20},
    {"GPU-00000000-0000-0000-0000-000000000002", "Stand-in Quiet", 0, 0, 80000 * MIB, 0, 31, 345, 0x01},
    {"GPU-00000000-0000-0000-0000-000000000003", "Stand-in Sliced", 0, 9000 * MIB, 80000 * MIB, 250000, 50, 1980, 0x04},
    {"MIG-00000000-0000-0000-0000-000000000004", "Stand-in Slice", 0, 4000 * MIB, 10000 * MIB, 0, 0, 0, 0},
};

static int init_balance;
static int event_sets, gpm_samples; /* how many there are */
static int register_result, lost_result;
static long device_calls;
static long lost_from_call = LONG_MAX;
static long lost_until_call = LONG_MAX;

static long number_from_environment(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

static int is_lost(void) { return device_calls >= lost_from_call && device_calls < lost_until_call; }

/* Every call about a device begins here: it is counted, and the device may be gone. */
static int enter(const device_t *device) {
    if (init_balance <= 0) return UNINITIALIZED;
    device_calls++;
    if (device < devices || device >= devices + DEVICE_COUNT) return INVALID_ARGUMENT;
    return device == &devices[STRAINED] && is_lost() ? lost_result : SUCCESS;
}

/* The same for what a slice does not have. */
static int enter_board(const device_t *device) {
    int result = enter(device);
    return result == SUCCESS && device == &devices[SLICE] ? NOT_SUPPORTED : result;
}

int nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    int result = (int)number_from_environment("STAND_IN_INIT_RESULT", SUCCESS);
    register_result = (int)number_from_environment("STAND_IN_NO_EVENTS", SUCCESS);
    lost_result = (int)number_from_environment("STAND_IN_LOST_RESULT", GPU_IS_LOST);
    lost_from_call = number_from_environment("STAND_IN_LOST_FROM_CALL", LONG_MAX);
    lost_until_call = number_from_environment("STAND_IN_LOST_UNTIL_CALL", LONG_MAX);
    if (result == SUCCESS) init_balance++;
    return result;
}

int nvmlShutdown(void) {
    if (init_balance <= 0) return UNINITIALIZED;
    init_balance--;
    return SUCCESS;
}

/* pynvml has its own texts for the usual errors and asks only for the others. */
const char *nvmlErrorString(int result) { return result == 4242 ? "Stand-in: made-up error!" : "Unknown Error"; }

int nvmlDeviceGetHandleByUUID(const char *uuid, const device_t **device) {
    for (const device_t *each = devices; each < devices + DEVICE_COUNT; each++) {
        if (strcmp(each->uuid, uuid) == 0) {
            *device = each;
            return enter(each);
        }
    }
    device_calls++;
    return init_balance > 0 ? NOT_FOUND : UNINITIALIZED;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(const device_t *slice, const device_t **board) {
    int result = enter(slice);
    if (result != SUCCESS) return result;
    if (slice != &devices[SLICE]) return INVALID_ARGUMENT;
    *board = &devices[SLICED];
    return SUCCESS;
}

int nvmlDeviceGetName(const device_t *device, char *name, unsigned int length) {
    int result = enter(device);
    if (result != SUCCESS) return result;
    if (strlen(device->name) >= length) return INSUFFICIENT_SIZE;
    strcpy(name, device->name);
    return SUCCESS;
}

typedef struct {
    unsigned int gpu, memory;
} utilization_t;

/* Read a line of STAND_IN_PROCESSES_FILE about a board: what it says, after its index; EOF after the last. */
static int read_held(FILE *file, const char *kind, const device_t *device, unsigned long long *first,
                     unsigned long long *second) {
    char line[128], word[16];
    unsigned int index;
    while (fgets(line, sizeof line, file)) {
        *second = 0;
        if (sscanf(line, "%15s %u %llu %llu", word, &index, first, second) >= 3 && strcmp(word, kind) == 0 &&
            &devices[index] == device)
            return SUCCESS;
    }
    return EOF;
}

static FILE *open_held(void) {
    const char *path = getenv("STAND_IN_PROCESSES_FILE");
    return path ? fopen(path, "r") : NULL;
}

int nvmlDeviceGetUtilizationRates(const device_t *device, utilization_t *utilization) {
    int result = enter_board(device);
    if (result != SUCCESS) return result;
    if (device == &devices[SLICED]) return NOT_SUPPORTED;
    utilization->gpu = device->utilization_percent;
    utilization->memory = 0;
    FILE *file = open_held();
    if (file == NULL) return SUCCESS;
    unsigned long long percent, nothing;
    if (read_held(file, "utilization", device, &percent, &nothing) == SUCCESS) utilization->gpu = (unsigned int)percent;
    fclose(file);
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned int *count) {
    *count = SLICE; /* boards */
    return init_balance > 0 ? SUCCESS : UNINITIALIZED;
}

int nvmlDeviceGetUUID(const device_t *device, char *uuid, unsigned int length) {
    int result = enter(device);
    if (result == SUCCESS && strlen(device->uuid) >= length) return INSUFFICIENT_SIZE;
    if (result == SUCCESS) strcpy(uuid, device->uuid);
    return result;
}

typedef struct {
    unsigned int pid;
    unsigned long long used_bytes;
    unsigned int gpu_instance, compute_instance;
} process_t;

/* A process without a number of bytes has memory that the driver does not tell. */
int nvmlDeviceGetComputeRunningProcesses_v3(const device_t *device, unsigned int *count, process_t *processes) {
    int result = enter_board(device);
    if (result != SUCCESS) return result;
    FILE *file = open_held();
    unsigned int found = 0;
    unsigned long long pid, bytes;
    while (file && read_held(file, "process", device, &pid, &bytes) == SUCCESS) {
        if (found < *count)
            processes[found] = (process_t){(unsigned int)pid, bytes ? bytes : ULLONG_MAX, UINT_MAX, UINT_MAX};
        found++;
    }
    if (file) fclose(file);
    int is_too_small = found > *count;
    *count = found;
    return is_too_small ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(const device_t *device, unsigned int *count, process_t *processes) {
    (void)processes;
    *count = 0;
    return enter_board(device);
}

typedef struct {
    unsigned long long total, free, used;
} memory_t;

int nvmlDeviceGetMemoryInfo(const device_t *device, memory_t *memory) {
    int result = enter(device);
    if (result != SUCCESS) return result;
    memory->total = device->total_bytes;
    memory->used = device->used_bytes + RESERVED_BYTES;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

#ifndef OLD_DRIVER
typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} memory_v2_t;

int nvmlDeviceGetMemoryInfo_v2(const device_t *device, memory_v2_t *memory) {
    int result = enter(device);
    if (result != SUCCESS) return result;
    if (memory->version != (sizeof(memory_v2_t) | 2u << 24)) return ARGUMENT_VERSION_MISMATCH;
    memory->total = device->total_bytes;
    memory->reserved = RESERVED_BYTES;
    memory->used = device->used_bytes;
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}
#endif

int nvmlDeviceGetPowerUsage(const device_t *device, unsigned int *milliwatts) {
    int result = enter_board(device);
    if (result != SUCCESS) return result;
    if (device == &devices[QUIET]) return NO_PERMISSION;
    *milliwatts = device->milliwatts;
    return SUCCESS;
}

/* Since the driver was loaded; half a joule more each time it is asked for. */
int nvmlDeviceGetTotalEnergyConsumption(const device_t *device, unsigned long long *millijoules) {
    static unsigned long long used = 7000000000;
    int result = enter_board(device);
    if (result == SUCCESS) *millijoules = used += 500;
    return result;
}

int nvmlDeviceGetEnforcedPowerLimit(const device_t *device, unsigned int *milliwatts) {
    int result = enter_board(device);
    if (result == SUCCESS) *milliwatts = 700000;
    return result;
}

/* The power limit is that of the file STAND_IN_POWER_FILE, in milliwatts, so that it outlives a process as a real one
   does; STAND_IN_POWER_RESULT is what setting it returns. */
int nvmlDeviceGetPowerManagementLimit(const device_t *device, unsigned int *milliwatts) {
    int result = enter_board(device);
    if (result != SUCCESS) return result;
    FILE *file = fopen(getenv("STAND_IN_POWER_FILE"), "r");
    if (file == NULL) return NOT_SUPPORTED;
    result = fscanf(file, "%u", milliwatts) == 1 ? SUCCESS : NOT_SUPPORTED;
    fclose(file);
    return result;
}

int nvmlDeviceGetPowerManagementLimitConstraints(const device_t *device, unsigned int *lowest, unsigned int *highest) {
    int result = enter_board(device);
    *lowest = 200000;
    *highest = 700000;
    return result;
}

int nvmlDeviceSetPowerManagementLimit(const device_t *device, unsigned int milliwatts) {
    int result = enter_board(device);
    if (result == SUCCESS) result = (int)number_from_environment("STAND_IN_POWER_RESULT", SUCCESS);
    if (result != SUCCESS) return result;
    FILE *file = fopen(getenv("STAND_IN_POWER_FILE"), "w");
    if (file == NULL) return NOT_SUPPORTED;
    fprintf(file, "%u\n", milliwatts);
    fclose(file);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, const device_t **device) {
    if (index >= SLICE) return INVALID_ARGUMENT;
    *device = &devices[index];
    return enter(*device);
}

/* STRAINED has 8 lanes of the 16 that it and its slot could have; QUIET has lowered its generation, as idle GPUs do. */
int nvmlDeviceGetCurrPcieLinkWidth(const device_t *device, unsigned int *lanes) {
    int result = enter_board(device);
    if (result == SUCCESS) *lanes = device == &devices[STRAINED] ? 8 : 16;
    return result;
}

int nvmlDeviceGetCurrPcieLinkGeneration(const device_t *device, unsigned int *generation) {
    int result = enter_board(device);
    if (result == SUCCESS) *generation = device == &devices[QUIET] ? 1 : 5;
    return result;
}

int nvmlDeviceGetMaxPcieLinkWidth(const device_t *device, unsigned int *lanes) {
    int result = enter_board(device);
    if (result == SUCCESS) *lanes = 16;
    return result;
}

int nvmlDeviceGetMaxPcieLinkGeneration(const device_t *device, unsigned int *generation) {
    int result = enter_board(device);
    if (result == SUCCESS) *generation = 5;
    return result;
}

int nvmlDeviceGetTemperature(const device_t *device, int sensor, unsigned int *celsius) {
    int result = enter_board(device);
    if (result != SUCCESS) return result;
    if (sensor != SENSOR_GPU) return INVALID_ARGUMENT;
    *celsius = device->celsius;
    return SUCCESS;
}

/* The graphics clock is one megahertz off, so that a caller who asks for the wrong clock is seen. */
int nvmlDeviceGetClockInfo(const device_t *device, int clock, unsigned int *megahertz) {
    int result = enter_board(device);
    if (result != SUCCESS) return result;
    if (clock < CLOCK_GRAPHICS || clock > CLOCK_MEMORY) return INVALID_ARGUMENT;
    *megahertz = clock == CLOCK_MEMORY ? 3201 : device->sm_megahertz + (clock == CLOCK_GRAPHICS);
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(const device_t *device, unsigned long long *reasons) {
    int result = enter_board(device);
    if (result != SUCCESS) return result;
    *reasons = device->clock_reasons;
    return SUCCESS;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetCurrentClocksEventReasons(const device_t *device, unsigned long long *reasons) {
    return nvmlDeviceGetCurrentClocksThrottleReasons(device, reasons);
}
#endif

/* -- traffic ----------------------------------------------------------------------------------------------------- */

enum { NVLINK_TX = 138, NVLINK_RX = 139, PCIE_TX = 197, PCIE_RX = 198 };
enum { TYPE_UNSIGNED_INT = 1, TYPE_UNSIGNED_LONG_LONG = 3 };

typedef struct {
    unsigned int field, scope;
    long long timestamp, latency;
    unsigned int type, result;
    union {
        unsigned int small;
        unsigned long long large;
    } value;
} field_value_t;

/* One link has a twelfth of what all twelve have, so that a caller who asks for the first link alone is seen. */
static unsigned int read_nvlink(const device_t *device, field_value_t *field) {
    if (device == &devices[QUIET]) return NOT_SUPPORTED;
    unsigned long long kib = field->field == NVLINK_TX ? 1200000000ULL : 2400000000ULL;
    if (field->scope != UINT_MAX && field->scope > 11) return INVALID_ARGUMENT;
    field->type = TYPE_UNSIGNED_LONG_LONG;
    field->value.large = field->scope == UINT_MAX ? kib : kib / 12;
    return SUCCESS;
}

static unsigned int read_pcie(const device_t *device, field_value_t *field) {
    unsigned long long bytes = field->field == PCIE_TX ? 5000000000ULL : 6000000000ULL;
    if (device == &devices[QUIET]) {
        field->type = TYPE_UNSIGNED_INT;
        field->value.small = (unsigned int)bytes;
    } else {
        field->type = TYPE_UNSIGNED_LONG_LONG;
        field->value.large = bytes;
    }
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(const device_t *device, int count, field_value_t *fields) {
    int result = enter_board(device);
    if (result != SUCCESS) return result;
    for (field_value_t *field = fields; field < fields + count; field++) {
        if (field->field == NVLINK_TX || field->field == NVLINK_RX) field->result = read_nvlink(device, field);
        else if (field->field == PCIE_TX || field->field == PCIE_RX) field->result = read_pcie(device, field);
        else field->result = INVALID_ARGUMENT;
    }
    return SUCCESS;
}

/* -- faults ------------------------------------------------------------------------------------------------------ */

enum { ECC_CORRECTED = 0, ECC_VOLATILE = 0 };

int nvmlDeviceGetTotalEccErrors(const device_t *device, int kind, int counter, unsigned long long *count) {
    int result = enter_board(device);
    if (result != SUCCESS) return result;
    if (device == &devices[QUIET]) return NOT_SUPPORTED;
    if (counter != ECC_VOLATILE) return INVALID_ARGUMENT;
    *count = kind == ECC_CORRECTED ? 21 : 1;
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(const device_t *device, unsigned int *correctable, unsigned int *uncorrectable,
                              unsigned int *pending, unsigned int *failed) {
    int result = enter_board(device);
    if (result != SUCCESS) return result;
    if (device == &devices[QUIET]) return NOT_SUPPORTED;
    *correctable = 5;
    *uncorrectable = 2;
    *pending = 1;
    *failed = 0;
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(const device_t *device, unsigned int *instance) {
    int result = enter(device);
    if (result != SUCCESS) return result;
    if (device != &devices[SLICE]) return NOT_FOUND;
    *instance = SLICE_INSTANCE;
    return SUCCESS;
}

/* -- events: one queue for all sets, of the devices that are registered with any ---------------------------------- */

enum { XID_CRITICAL_ERROR = 0x8, QUEUE_LENGTH = 256 };

typedef struct {
    const device_t *device;
    unsigned long long type, xid;
    unsigned int gpu_instance, compute_instance;
} event_t;

typedef struct {
    const device_t *registered;
    int first, count;
    event_t queue[QUEUE_LENGTH];
} event_set_t;

static event_set_t the_set;

int nvmlEventSetCreate(event_set_t **set) {
    if (init_balance <= 0) return UNINITIALIZED;
    the_set = (event_set_t){0};
    *set = &the_set;
    event_sets++;
    return SUCCESS;
}

int nvmlEventSetFree(event_set_t *set) {
    if (set != &the_set || event_sets <= 0) return INVALID_ARGUMENT;
    event_sets--;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(const device_t *device, unsigned long long types, event_set_t *set) {
    int result = enter_board(device);
    if (result != SUCCESS) return result;
    if (set != &the_set || types != XID_CRITICAL_ERROR) return INVALID_ARGUMENT;
    if (register_result == SUCCESS) set->registered = device;
    return register_result;
}

int nvmlEventSetWait_v2(event_set_t *set, event_t *event, unsigned int timeout_ms) {
    if (init_balance <= 0) return UNINITIALIZED;
    if (set != &the_set || timeout_ms != 0) return INVALID_ARGUMENT;
    if (set->first == set->count) return TIMEOUT;
    *event = set->queue[set->first++];
    return SUCCESS;
}

/* -- performance counters ---------------------------------------------------------------------------------------- */

#ifndef OLD_DRIVER
enum { GPM_VERSION = 1, SM_UTIL = 2, SM_OCCUPANCY = 3, TENSOR_UTIL = 5, DRAM_UTIL = 10, LINK_RX = 60, LINK_TX = 61 };

typedef struct {
    unsigned int version, is_supported;
} gpm_support_t;

/* A snapshot knows its number: values come only from two that follow one another. */
typedef struct {
    long number;
    unsigned int instance;
} gpm_sample_t;

typedef struct {
    unsigned int id, result;
    double value;
    const char *short_name, *long_name, *unit;
} gpm_metric_t;

typedef struct {
    unsigned int version, count;
    gpm_sample_t *earlier, *later;
    gpm_metric_t metrics[];
} gpm_request_t;

static long snapshots;

int nvmlGpmQueryDeviceSupport(const device_t *device, gpm_support_t *support) {
    int result = enter_board(device);
    if (result != SUCCESS) return result;
    if (support->version != GPM_VERSION) return ARGUMENT_VERSION_MISMATCH;
    support->is_supported = device != &devices[QUIET];
    return SUCCESS;
}

int nvmlGpmSampleAlloc(gpm_sample_t **sample) {
    *sample = calloc(1, sizeof(gpm_sample_t));
    gpm_samples++;
    return SUCCESS;
}

int nvmlGpmSampleFree(gpm_sample_t *sample) {
    free(sample);
    gpm_samples--;
    return SUCCESS;
}

static int take_snapshot(const device_t *device, unsigned int instance, gpm_sample_t *sample) {
    int result = enter_board(device);
    if (result != SUCCESS) return result;
    *sample = (gpm_sample_t){++snapshots, instance};
    return SUCCESS;
}

int nvmlGpmSampleGet(const device_t *device, gpm_sample_t *sample) { return take_snapshot(device, UINT_MAX, sample); }

int nvmlGpmMigSampleGet(const device_t *device, unsigned int instance, gpm_sample_t *sample) {
    return device == &devices[SLICED] ? take_snapshot(device, instance, sample) : INVALID_ARGUMENT;
}

/* A slice has half the activity of a whole GPU, an occupancy that is not a number, and no NVLink. */
static unsigned int read_metric(gpm_metric_t *metric, unsigned int instance) {
    double share = instance == SLICE_INSTANCE ? 0.5 : 1;
    switch (metric->id) {
        case SM_UTIL: metric->value = 90 * share; break;
        case SM_OCCUPANCY: metric->value = instance == SLICE_INSTANCE ? NAN : 25; break;
        case TENSOR_UTIL: metric->value = 57 * share; break;
        case DRAM_UTIL: metric->value = 29 * share; break;
        case LINK_RX: metric->value = 2048; break;
        case LINK_TX: metric->value = 1024; break;
        default: return INVALID_ARGUMENT;
    }
    return metric->id >= LINK_RX && instance == SLICE_INSTANCE ? NOT_SUPPORTED : SUCCESS;
}

int nvmlGpmMetricsGet(gpm_request_t *request) {
    if (request->version != GPM_VERSION) return ARGUMENT_VERSION_MISMATCH;
    if (request->earlier->number == 0 || request->later->number != request->earlier->number + 1) return INVALID_ARGUMENT;
    for (gpm_metric_t *metric = request->metrics; metric < request->metrics + request->count; metric++)
        metric->result = read_metric(metric, request->later->instance);
    return SUCCESS;
}
#endif

/* -- for the test ------------------------------------------------------------------------------------------------- */

/* An Xid error on the registered device, of one GPU instance or of none (-1). */
void stand_in_raise_xid(unsigned long long xid, unsigned int gpu_instance) {
    if (the_set.registered && the_set.count < QUEUE_LENGTH)
        the_set.queue[the_set.count++] =
            (event_t){the_set.registered, XID_CRITICAL_ERROR, xid, gpu_instance, UINT_MAX};
}

/* How many event sets and snapshots of the performance counters have not been given back. */
int stand_in_event_sets(void) { return event_sets; }
int stand_in_gpm_samples(void) { return gpm_samples; }

/* How many calls about devices there were so far. */
long stand_in_device_calls(void) { return device_calls; }

/* How often nvmlInit succeeded more than nvmlShutdown did. */
int stand_in_init_balance(void) { return init_balance; }
