/* A libnvidia-ml.so.1 for machines without a GPU: the part of NVML's C interface that rankscope calls through pynvml.

   Four handles, all with fixed readings:

     STRAINED  GPU-...-01   throttled: hw_slowdown and sw_thermal_slowdown, beside clocks set on purpose
     QUIET     GPU-...-02   idle, not throttled; power needs a permission that the caller does not have
     SLICED    GPU-...-03   a board in MIG mode: no utilisation
     SLICE     MIG-...-04   a slice of SLICED: it has memory only, the rest is asked of its board

   What it does is chosen by environment variables, each a number, read at nvmlInit:

     STAND_IN_INIT_RESULT        what nvmlInit returns (9: driver not loaded)
     STAND_IN_LOST_FROM_CALL     from this device call on, counted from 1, STRAINED has fallen off the bus ...
     STAND_IN_LOST_UNTIL_CALL    ... until this one, which sees it again

   Compiled with -DOLD_DRIVER it lacks the functions that came with drivers 510 (memory, second version) and 535 (clock
   event reasons). The two stand_in_ functions at the end let a test count. */

#include <limits.h>
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
    GPU_IS_LOST = 15,
    ARGUMENT_VERSION_MISMATCH = 25,
};

enum { STRAINED, QUIET, SLICED, SLICE, DEVICE_COUNT };

enum { CLOCK_GRAPHICS = 0, CLOCK_SM = 1, SENSOR_GPU = 0 };

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
    return device == &devices[STRAINED] && is_lost() ? GPU_IS_LOST : SUCCESS;
}

/* The same for what a slice does not have. */
static int enter_board(const device_t *device) {
    int result = enter(device);
    return result == SUCCESS && device == &devices[SLICE] ? NOT_SUPPORTED : result;
}

int nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    int result = (int)number_from_environment("STAND_IN_INIT_RESULT", SUCCESS);
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

int nvmlDeviceGetUtilizationRates(const device_t *device, utilization_t *utilization) {
    int result = enter_board(device);
    if (result != SUCCESS) return result;
    if (device == &devices[SLICED]) return NOT_SUPPORTED;
    utilization->gpu = device->utilization_percent;
    utilization->memory = 0;
    return SUCCESS;
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
    if (clock != CLOCK_SM && clock != CLOCK_GRAPHICS) return INVALID_ARGUMENT;
    *megahertz = device->sm_megahertz + (clock == CLOCK_GRAPHICS);
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

/* How many calls about devices there were so far. */
long stand_in_device_calls(void) { return device_calls; }

/* How often nvmlInit succeeded more than nvmlShutdown did. */
int stand_in_init_balance(void) { return init_balance; }
