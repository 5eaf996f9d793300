/* The part of NVTX 3's binary interface that a listener needs, written down from its headers
 * (nvToolsExt.h, nvtxDetail/nvtxTypes.h). Names are NVTX's own; a test compiles both and compares.
 */
#ifndef HPCPROF_NVTX_ABI_H
#define HPCPROF_NVTX_ABI_H

#include <stddef.h>
#include <stdint.h>
#include <wchar.h>

typedef void *nvtxDomainHandle_t;
typedef void *nvtxStringHandle_t;
typedef uint64_t nvtxRangeId_t;

enum {
    NVTX_MESSAGE_UNKNOWN = 0,
    NVTX_MESSAGE_TYPE_ASCII = 1,
    NVTX_MESSAGE_TYPE_UNICODE = 2,
    NVTX_MESSAGE_TYPE_REGISTERED = 3,
};

enum {
    NVTX_PAYLOAD_UNKNOWN = 0,
    NVTX_PAYLOAD_TYPE_UNSIGNED_INT64 = 1,
    NVTX_PAYLOAD_TYPE_INT64 = 2,
    NVTX_PAYLOAD_TYPE_DOUBLE = 3,
    NVTX_PAYLOAD_TYPE_UNSIGNED_INT32 = 4,
    NVTX_PAYLOAD_TYPE_INT32 = 5,
    NVTX_PAYLOAD_TYPE_FLOAT = 6,
};

typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t colorType;
    uint32_t color;
    int32_t payloadType, reserved0;
    union {
        uint64_t ullValue;
        int64_t llValue;
        double dValue;
        uint32_t uiValue;
        int32_t iValue;
        float fValue;
    } payload;
    int32_t messageType;
    union {
        const char *ascii;
        const wchar_t *unicode;
        nvtxStringHandle_t registered;
    } message;
} nvtxEventAttributes_t;

enum { NVTX_ETID_CALLBACKS = 1 };
enum { NVTX_CB_MODULE_CORE = 1, NVTX_CB_MODULE_CORE2 = 5 };

enum {
    NVTX_CBID_CORE_MarkEx = 1,
    NVTX_CBID_CORE_MarkA,
    NVTX_CBID_CORE_MarkW,
    NVTX_CBID_CORE_RangeStartEx,
    NVTX_CBID_CORE_RangeStartA,
    NVTX_CBID_CORE_RangeStartW,
    NVTX_CBID_CORE_RangeEnd,
    NVTX_CBID_CORE_RangePushEx,
    NVTX_CBID_CORE_RangePushA,
    NVTX_CBID_CORE_RangePushW,
    NVTX_CBID_CORE_RangePop,
};

enum {
    NVTX_CBID_CORE2_DomainMarkEx = 1,
    NVTX_CBID_CORE2_DomainRangeStartEx,
    NVTX_CBID_CORE2_DomainRangeEnd,
    NVTX_CBID_CORE2_DomainRangePushEx,
    NVTX_CBID_CORE2_DomainRangePop,
    NVTX_CBID_CORE2_DomainRegisterStringA = 10,
    NVTX_CBID_CORE2_DomainRegisterStringW,
    NVTX_CBID_CORE2_DomainCreateA,
    NVTX_CBID_CORE2_DomainCreateW,
};

typedef void (*NvtxFunctionPointer)(void);
typedef NvtxFunctionPointer **NvtxFunctionTable;

typedef struct {
    size_t struct_size;
    int (*GetModuleFunctionTable)(int module, NvtxFunctionTable *table, unsigned int *size);
} NvtxExportTableCallbacks;

typedef const void *(*NvtxGetExportTableFunc_t)(uint32_t table);

#endif
