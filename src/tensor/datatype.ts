/**
 * Datatypes of the Open Inference Protocol v2 and their ONNX Runtime element types.
 *
 * One table; everything else that knows about a datatype derives from it.
 */

/** Name of a datatype as it stands in the protocol. */
export type Datatype =
  | 'BOOL'
  | 'UINT8'
  | 'UINT16'
  | 'UINT32'
  | 'UINT64'
  | 'INT8'
  | 'INT16'
  | 'INT32'
  | 'INT64'
  | 'FP16'
  | 'FP32'
  | 'FP64'
  | 'BF16'
  | 'BYTES';

export interface DatatypeInfo {
  /** ONNXTensorElementDataType of ONNX Runtime's C API. */
  readonly ortType: number;
  /** Size of one element in bytes; 0 for BYTES, whose elements differ in length. */
  readonly elementBytes: number;
  /** Whether the protocol gives the type a JSON form. FP16 and BF16 travel in binary only. */
  readonly json: boolean;
  readonly kind: 'bool' | 'uint' | 'int' | 'float' | 'bytes';
}

export const DATATYPES = {
  BOOL: { ortType: 9, elementBytes: 1, json: true, kind: 'bool' },
  UINT8: { ortType: 2, elementBytes: 1, json: true, kind: 'uint' },
  UINT16: { ortType: 4, elementBytes: 2, json: true, kind: 'uint' },
  UINT32: { ortType: 12, elementBytes: 4, json: true, kind: 'uint' },
  UINT64: { ortType: 13, elementBytes: 8, json: true, kind: 'uint' },
  INT8: { ortType: 3, elementBytes: 1, json: true, kind: 'int' },
  INT16: { ortType: 5, elementBytes: 2, json: true, kind: 'int' },
  INT32: { ortType: 6, elementBytes: 4, json: true, kind: 'int' },
  INT64: { ortType: 7, elementBytes: 8, json: true, kind: 'int' },
  FP16: { ortType: 10, elementBytes: 2, json: false, kind: 'float' },
  FP32: { ortType: 1, elementBytes: 4, json: true, kind: 'float' },
  FP64: { ortType: 11, elementBytes: 8, json: true, kind: 'float' },
  BF16: { ortType: 16, elementBytes: 2, json: false, kind: 'float' },
  BYTES: { ortType: 8, elementBytes: 0, json: true, kind: 'bytes' },
} as const satisfies Record<Datatype, DatatypeInfo>;

const byOrtType = new Map<number, Datatype>(
  (Object.keys(DATATYPES) as Datatype[]).map((name) => [DATATYPES[name].ortType, name]),
);

/** Facts about a datatype. */
export function datatypeInfo(datatype: Datatype): DatatypeInfo {
  return DATATYPES[datatype];
}

/** Whether `name` is a datatype of the protocol. Safe for names that come from a request. */
export function isDatatype(name: unknown): name is Datatype {
  return typeof name === 'string' && Object.hasOwn(DATATYPES, name);
}

/** Datatype of an ONNX Runtime element type, or undefined for one the protocol has no name for (complex, float8 …). */
export function datatypeOfOrt(ortType: number): Datatype | undefined {
  return byOrtType.get(ortType);
}
