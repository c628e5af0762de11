/**
 * The tables of the small messages: field numbers as in config/proto, which a test holds against them.
 */
import type { MessageTable } from './message.ts';

export const EMPTY = {} satisfies MessageTable;

/** ModelReadyRequest, ModelMetadataRequest, ModelConfigRequest. */
export const MODEL_REQUEST = {
  1: { name: 'name', kind: 'string' },
  2: { name: 'version', kind: 'string' },
} satisfies MessageTable;

export const LIVE_RESPONSE = { 1: { name: 'live', kind: 'bool' } } satisfies MessageTable;
export const READY_RESPONSE = { 1: { name: 'ready', kind: 'bool' } } satisfies MessageTable;

export const SERVER_METADATA_RESPONSE = {
  1: { name: 'name', kind: 'string' },
  2: { name: 'version', kind: 'string' },
  3: { name: 'extensions', kind: 'string', repeated: true },
} satisfies MessageTable;

const TENSOR_METADATA = {
  1: { name: 'name', kind: 'string' },
  2: { name: 'datatype', kind: 'string' },
  3: { name: 'shape', kind: 'int', repeated: true },
} satisfies MessageTable;

const PROPERTY = { 1: { name: 'key', kind: 'string' }, 2: { name: 'value', kind: 'string' } } satisfies MessageTable;

export const MODEL_METADATA_RESPONSE = {
  1: { name: 'name', kind: 'string' },
  2: { name: 'versions', kind: 'string', repeated: true },
  3: { name: 'platform', kind: 'string' },
  4: { name: 'inputs', kind: TENSOR_METADATA, repeated: true },
  5: { name: 'outputs', kind: TENSOR_METADATA, repeated: true },
  6: { name: 'properties', kind: PROPERTY, repeated: true },
} satisfies MessageTable;

const MODEL_INPUT = {
  1: { name: 'name', kind: 'string' },
  2: { name: 'data_type', kind: 'int' },
  4: { name: 'dims', kind: 'int', repeated: true },
} satisfies MessageTable;

const MODEL_OUTPUT = {
  1: { name: 'name', kind: 'string' },
  2: { name: 'data_type', kind: 'int' },
  3: { name: 'dims', kind: 'int', repeated: true },
} satisfies MessageTable;

/** Numbers of the enumeration DataType. */
export const DATA_TYPES: Readonly<Record<string, number>> = {
  TYPE_BOOL: 1,
  TYPE_UINT8: 2,
  TYPE_UINT16: 3,
  TYPE_UINT32: 4,
  TYPE_UINT64: 5,
  TYPE_INT8: 6,
  TYPE_INT16: 7,
  TYPE_INT32: 8,
  TYPE_INT64: 9,
  TYPE_FP16: 10,
  TYPE_FP32: 11,
  TYPE_FP64: 12,
  TYPE_STRING: 13,
  TYPE_BF16: 14,
};

const MODEL_CONFIG = {
  1: { name: 'name', kind: 'string' },
  2: { name: 'platform', kind: 'string' },
  4: { name: 'max_batch_size', kind: 'int' },
  5: { name: 'input', kind: MODEL_INPUT, repeated: true },
  6: { name: 'output', kind: MODEL_OUTPUT, repeated: true },
  17: { name: 'backend', kind: 'string' },
} satisfies MessageTable;

export const MODEL_CONFIG_RESPONSE = { 1: { name: 'config', kind: MODEL_CONFIG } } satisfies MessageTable;

const DURATION = { 1: { name: 'count', kind: 'int' }, 2: { name: 'ns', kind: 'int' } } satisfies MessageTable;

const INFER_STATISTICS = {
  1: { name: 'success', kind: DURATION },
  2: { name: 'fail', kind: DURATION },
  3: { name: 'queue', kind: DURATION },
  4: { name: 'compute_input', kind: DURATION },
  5: { name: 'compute_infer', kind: DURATION },
  6: { name: 'compute_output', kind: DURATION },
  7: { name: 'cache_hit', kind: DURATION },
  8: { name: 'cache_miss', kind: DURATION },
} satisfies MessageTable;

const BATCH_STATISTICS = {
  1: { name: 'batch_size', kind: 'int' },
  2: { name: 'compute_input', kind: DURATION },
  3: { name: 'compute_infer', kind: DURATION },
  4: { name: 'compute_output', kind: DURATION },
} satisfies MessageTable;

const MODEL_STATISTICS = {
  1: { name: 'name', kind: 'string' },
  2: { name: 'version', kind: 'string' },
  3: { name: 'last_inference', kind: 'int' },
  4: { name: 'inference_count', kind: 'int' },
  5: { name: 'execution_count', kind: 'int' },
  6: { name: 'inference_stats', kind: INFER_STATISTICS },
  7: { name: 'batch_stats', kind: BATCH_STATISTICS, repeated: true },
} satisfies MessageTable;

/** ModelStatisticsResponse; the request is a MODEL_REQUEST. */
export const STATISTICS_RESPONSE = {
  1: { name: 'model_stats', kind: MODEL_STATISTICS, repeated: true },
} satisfies MessageTable;

export const INDEX_REQUEST = {
  1: { name: 'repository_name', kind: 'string' },
  2: { name: 'ready', kind: 'bool' },
} satisfies MessageTable;

const MODEL_INDEX = {
  1: { name: 'name', kind: 'string' },
  2: { name: 'version', kind: 'string' },
  3: { name: 'state', kind: 'string' },
  4: { name: 'reason', kind: 'string' },
} satisfies MessageTable;

export const INDEX_RESPONSE = { 1: { name: 'models', kind: MODEL_INDEX, repeated: true } } satisfies MessageTable;

/** Of the oneof: the kinds that a load can have. */
const CONTROL_PARAMETER = {
  1: { name: 'bool_param', kind: 'bool' },
  2: { name: 'int64_param', kind: 'int' },
  3: { name: 'string_param', kind: 'string' },
  4: { name: 'bytes_param', kind: 'bytes' },
} satisfies MessageTable;

const CONTROL_ENTRY = {
  1: { name: 'key', kind: 'string' },
  2: { name: 'value', kind: CONTROL_PARAMETER },
} satisfies MessageTable;

/** RepositoryModelLoadRequest, RepositoryModelUnloadRequest. */
export const CONTROL_REQUEST = {
  1: { name: 'repository_name', kind: 'string' },
  2: { name: 'model_name', kind: 'string' },
  3: { name: 'parameters', kind: CONTROL_ENTRY, repeated: true },
} satisfies MessageTable;

/** SystemSharedMemoryStatusRequest, …UnregisterRequest and those for CUDA. */
export const REGION_NAME_REQUEST = { 1: { name: 'name', kind: 'string' } } satisfies MessageTable;

/** SystemSharedMemoryRegisterRequest, and what a status says of a region. */
export const REGION = {
  1: { name: 'name', kind: 'string' },
  2: { name: 'key', kind: 'string' },
  3: { name: 'offset', kind: 'int' },
  4: { name: 'byte_size', kind: 'int' },
} satisfies MessageTable;

const REGION_ENTRY = {
  1: { name: 'key', kind: 'string' },
  2: { name: 'value', kind: REGION },
} satisfies MessageTable;

/** SystemSharedMemoryStatusResponse; CudaSharedMemoryStatusResponse where it has no regions. */
export const REGIONS_RESPONSE = {
  1: { name: 'regions', kind: REGION_ENTRY, repeated: true },
} satisfies MessageTable;

/** The value is a message of a oneof, of which has to be known what is set: see log-settings.ts. */
const SETTING_ENTRY = {
  1: { name: 'key', kind: 'string' },
  2: { name: 'value', kind: 'bytes' },
} satisfies MessageTable;

/** LogSettingsRequest and LogSettingsResponse. */
export const LOG_SETTINGS = { 1: { name: 'settings', kind: SETTING_ENTRY, repeated: true } } satisfies MessageTable;

export const HEALTH_REQUEST = { 1: { name: 'service', kind: 'string' } } satisfies MessageTable;
/** Status 1 is SERVING, 2 NOT_SERVING, 3 SERVICE_UNKNOWN. */
export const HEALTH_RESPONSE = { 1: { name: 'status', kind: 'int' } } satisfies MessageTable;

const FILE_DESCRIPTORS = { 1: { name: 'file', kind: 'bytes', repeated: true } } satisfies MessageTable;
const SERVICE = { 1: { name: 'name', kind: 'string' } } satisfies MessageTable;
const SERVICE_LIST = { 1: { name: 'service', kind: SERVICE, repeated: true } } satisfies MessageTable;
const REFLECTION_ERROR = {
  1: { name: 'code', kind: 'int' },
  2: { name: 'message', kind: 'string' },
} satisfies MessageTable;

export const REFLECTION_RESPONSE = {
  1: { name: 'host', kind: 'string' },
  2: { name: 'original_request', kind: 'bytes' },
  4: { name: 'files', kind: FILE_DESCRIPTORS },
  6: { name: 'services', kind: SERVICE_LIST },
  7: { name: 'error', kind: REFLECTION_ERROR },
} satisfies MessageTable;
