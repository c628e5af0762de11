/**
 * Errors of ONNX Runtime, with its own code and message.
 */
import type { OrtApi } from './functions.ts';

/** OrtErrorCode, in order. */
const CODE_NAMES = [
  'OK',
  'FAIL',
  'INVALID_ARGUMENT',
  'NO_SUCHFILE',
  'NO_MODEL',
  'ENGINE_ERROR',
  'RUNTIME_EXCEPTION',
  'INVALID_PROTOBUF',
  'MODEL_LOADED',
  'NOT_IMPLEMENTED',
  'INVALID_GRAPH',
  'EP_FAIL',
] as const;

export const ORT_NOT_IMPLEMENTED = CODE_NAMES.indexOf('NOT_IMPLEMENTED');

export class OrtError extends Error {
  /** OrtErrorCode of the C API. */
  readonly code: number;
  readonly codeName: string;

  constructor(code: number, message: string) {
    super(message);
    this.name = 'OrtError';
    this.code = code;
    this.codeName = CODE_NAMES[code] ?? `CODE_${code}`;
  }
}

/** Reads a failed status into an error and releases the status. */
export function takeError(api: OrtApi, status: number): OrtError {
  try {
    return new OrtError(api.GetErrorCode(status), api.GetErrorMessage(status));
  } finally {
    api.ReleaseStatus(status);
  }
}
