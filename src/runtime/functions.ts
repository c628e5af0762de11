/**
 * The functions of ONNX Runtime's C API that are used, in one table: position in the function table, result, parameters.
 *
 * Source: onnxruntime_c_api.h of API version 29. The table only grows, so a position holds for ever; the tests check them by
 * what the functions do. Pointers are plain numbers here (user-space addresses stay below 2^47), which spares a BigInt per
 * argument: that is a third of the cost of a small run.
 */

/** API version asked of the library; it fixes nothing but how many positions may be used. */
export const API_VERSION = 29;

/** What the library's version string must be: the one whose table and behaviour the tests have seen. */
export const LIBRARY_VERSION = '1.30.0';

/** `text`: a C string, copied for the call. `bytes`: the memory of a Uint8Array, valid during the call. */
export type ParameterKind = 'pointer' | 'size' | 'int' | 'text' | 'bytes';

/** `status`: an OrtStatus*, 0 on success, owned by the caller. `text`: a C string that the library keeps. */
export type ResultKind = 'status' | 'void' | 'int' | 'text';

export interface FunctionShape {
  readonly at: number;
  readonly gives: ResultKind;
  readonly takes: readonly ParameterKind[];
}

export const FUNCTIONS = {
  GetErrorCode: { at: 1, gives: 'int', takes: ['pointer'] },
  GetErrorMessage: { at: 2, gives: 'text', takes: ['pointer'] },
  ReleaseStatus: { at: 93, gives: 'void', takes: ['pointer'] },

  // Environment and allocators of the process.
  CreateEnv: { at: 3, gives: 'status', takes: ['int', 'text', 'pointer'] },
  GetAvailableProviders: { at: 125, gives: 'status', takes: ['pointer', 'pointer'] },
  ReleaseAvailableProviders: { at: 126, gives: 'status', takes: ['pointer', 'int'] },
  CreateArenaCfgV2: { at: 164, gives: 'status', takes: ['pointer', 'pointer', 'size', 'pointer'] },
  ReleaseArenaCfg: { at: 157, gives: 'void', takes: ['pointer'] },
  CreateAndRegisterAllocatorV2: {
    at: 259,
    gives: 'status',
    takes: ['pointer', 'text', 'pointer', 'pointer', 'pointer', 'pointer', 'size'],
  },
  UnregisterAllocator: { at: 177, gives: 'status', takes: ['pointer', 'pointer'] },
  GetAllocatorWithDefaultOptions: { at: 78, gives: 'status', takes: ['pointer'] },
  AllocatorFree: { at: 76, gives: 'status', takes: ['pointer', 'pointer'] },
  CreateMemoryInfo: { at: 68, gives: 'status', takes: ['text', 'int', 'int', 'int', 'pointer'] },
  CreateCpuMemoryInfo: { at: 69, gives: 'status', takes: ['int', 'int', 'pointer'] },
  ReleaseMemoryInfo: { at: 94, gives: 'void', takes: ['pointer'] },
  CreateAllocator: { at: 131, gives: 'status', takes: ['pointer', 'pointer', 'pointer'] },
  ReleaseAllocator: { at: 132, gives: 'void', takes: ['pointer'] },
  AllocatorGetStats: { at: 319, gives: 'status', takes: ['pointer', 'pointer'] },
  GetKeyValuePairs: { at: 298, gives: 'void', takes: ['pointer', 'pointer', 'pointer', 'pointer'] },
  ReleaseKeyValuePairs: { at: 300, gives: 'void', takes: ['pointer'] },

  // Session options.
  CreateSessionOptions: { at: 10, gives: 'status', takes: ['pointer'] },
  ReleaseSessionOptions: { at: 100, gives: 'void', takes: ['pointer'] },
  DisableMemPattern: { at: 17, gives: 'status', takes: ['pointer'] },
  SetSessionLogId: { at: 20, gives: 'status', takes: ['pointer', 'text'] },
  SetSessionGraphOptimizationLevel: { at: 23, gives: 'status', takes: ['pointer', 'int'] },
  SetIntraOpNumThreads: { at: 24, gives: 'status', takes: ['pointer', 'int'] },
  SetInterOpNumThreads: { at: 25, gives: 'status', takes: ['pointer', 'int'] },
  AddSessionConfigEntry: { at: 130, gives: 'status', takes: ['pointer', 'text', 'text'] },
  SessionOptionsAppendExecutionProvider: {
    at: 216,
    gives: 'status',
    takes: ['pointer', 'text', 'pointer', 'pointer', 'size'],
  },
  CreateCUDAProviderOptions: { at: 205, gives: 'status', takes: ['pointer'] },
  UpdateCUDAProviderOptions: { at: 206, gives: 'status', takes: ['pointer', 'pointer', 'pointer', 'size'] },
  SessionOptionsAppendExecutionProvider_CUDA_V2: { at: 204, gives: 'status', takes: ['pointer', 'pointer'] },
  ReleaseCUDAProviderOptions: { at: 208, gives: 'void', takes: ['pointer'] },
  CreateTensorRTProviderOptions: { at: 171, gives: 'status', takes: ['pointer'] },
  UpdateTensorRTProviderOptions: { at: 172, gives: 'status', takes: ['pointer', 'pointer', 'pointer', 'size'] },
  SessionOptionsAppendExecutionProvider_TensorRT_V2: { at: 170, gives: 'status', takes: ['pointer', 'pointer'] },
  ReleaseTensorRTProviderOptions: { at: 174, gives: 'void', takes: ['pointer'] },

  // Session and its signature.
  CreateSession: { at: 7, gives: 'status', takes: ['pointer', 'text', 'pointer', 'pointer'] },
  ReleaseSession: { at: 95, gives: 'void', takes: ['pointer'] },
  SessionGetInputCount: { at: 30, gives: 'status', takes: ['pointer', 'pointer'] },
  SessionGetOutputCount: { at: 31, gives: 'status', takes: ['pointer', 'pointer'] },
  SessionGetInputTypeInfo: { at: 33, gives: 'status', takes: ['pointer', 'size', 'pointer'] },
  SessionGetOutputTypeInfo: { at: 34, gives: 'status', takes: ['pointer', 'size', 'pointer'] },
  SessionGetInputName: { at: 36, gives: 'status', takes: ['pointer', 'size', 'pointer', 'pointer'] },
  SessionGetOutputName: { at: 37, gives: 'status', takes: ['pointer', 'size', 'pointer', 'pointer'] },
  ReleaseTypeInfo: { at: 98, gives: 'void', takes: ['pointer'] },
  CastTypeInfoToTensorInfo: { at: 55, gives: 'status', takes: ['pointer', 'pointer'] },
  GetOnnxTypeFromTypeInfo: { at: 56, gives: 'status', takes: ['pointer', 'pointer'] },
  GetTensorElementType: { at: 60, gives: 'status', takes: ['pointer', 'pointer'] },
  GetDimensionsCount: { at: 61, gives: 'status', takes: ['pointer', 'pointer'] },
  GetDimensions: { at: 62, gives: 'status', takes: ['pointer', 'pointer', 'size'] },
  GetSymbolicDimensions: { at: 63, gives: 'status', takes: ['pointer', 'pointer', 'size'] },
  GetTensorShapeElementCount: { at: 64, gives: 'status', takes: ['pointer', 'pointer'] },
  ReleaseTensorTypeAndShapeInfo: { at: 99, gives: 'void', takes: ['pointer'] },
  SessionGetModelMetadata: { at: 111, gives: 'status', takes: ['pointer', 'pointer'] },
  ModelMetadataGetProducerName: { at: 112, gives: 'status', takes: ['pointer', 'pointer', 'pointer'] },
  ModelMetadataGetGraphName: { at: 113, gives: 'status', takes: ['pointer', 'pointer', 'pointer'] },
  ModelMetadataGetDescription: { at: 115, gives: 'status', takes: ['pointer', 'pointer', 'pointer'] },
  ModelMetadataLookupCustomMetadataMap: { at: 116, gives: 'status', takes: ['pointer', 'pointer', 'text', 'pointer'] },
  ModelMetadataGetVersion: { at: 117, gives: 'status', takes: ['pointer', 'pointer'] },
  ModelMetadataGetCustomMetadataMapKeys: {
    at: 123,
    gives: 'status',
    takes: ['pointer', 'pointer', 'pointer', 'pointer'],
  },
  ReleaseModelMetadata: { at: 118, gives: 'void', takes: ['pointer'] },

  // Runs and values.
  Run: {
    at: 9,
    gives: 'status',
    takes: ['pointer', 'pointer', 'pointer', 'pointer', 'size', 'pointer', 'size', 'pointer'],
  },
  CreateRunOptions: { at: 39, gives: 'status', takes: ['pointer'] },
  RunOptionsSetRunLogSeverityLevel: { at: 41, gives: 'status', takes: ['pointer', 'int'] },
  RunOptionsSetTerminate: { at: 46, gives: 'status', takes: ['pointer'] },
  RunOptionsUnsetTerminate: { at: 47, gives: 'status', takes: ['pointer'] },
  AddRunConfigEntry: { at: 165, gives: 'status', takes: ['pointer', 'text', 'text'] },
  ReleaseRunOptions: { at: 97, gives: 'void', takes: ['pointer'] },
  CreateTensorAsOrtValue: { at: 48, gives: 'status', takes: ['pointer', 'pointer', 'size', 'int', 'pointer'] },
  CreateTensorWithDataAsOrtValue: {
    at: 49,
    gives: 'status',
    takes: ['pointer', 'pointer', 'size', 'pointer', 'size', 'int', 'pointer'],
  },
  ReleaseValue: { at: 96, gives: 'void', takes: ['pointer'] },
  IsTensor: { at: 50, gives: 'status', takes: ['pointer', 'pointer'] },
  GetTensorMutableData: { at: 51, gives: 'status', takes: ['pointer', 'pointer'] },
  GetTensorTypeAndShape: { at: 65, gives: 'status', takes: ['pointer', 'pointer'] },
  GetTensorSizeInBytes: { at: 318, gives: 'status', takes: ['pointer', 'pointer'] },
  GetStringTensorDataLength: { at: 53, gives: 'status', takes: ['pointer', 'pointer'] },
  GetStringTensorContent: { at: 54, gives: 'status', takes: ['pointer', 'bytes', 'size', 'pointer', 'size'] },
  GetResizedStringTensorElementBuffer: { at: 252, gives: 'status', takes: ['pointer', 'size', 'size', 'pointer'] },
} as const satisfies Record<string, FunctionShape>;

type ParameterOf<K extends ParameterKind> = K extends 'text' ? string : K extends 'bytes' ? Uint8Array : number;
type ParametersOf<T extends readonly ParameterKind[]> = { -readonly [I in keyof T]: ParameterOf<T[I]> };
type ResultOf<K extends ResultKind> = K extends 'void' ? undefined : K extends 'text' ? string : number;

/** The table as callable functions. Each may block as long as the C function does. */
export type OrtApi = {
  readonly [N in keyof typeof FUNCTIONS]: (
    ...parameters: ParametersOf<(typeof FUNCTIONS)[N]['takes']>
  ) => ResultOf<(typeof FUNCTIONS)[N]['gives']>;
};
