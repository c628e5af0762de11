/**
 * Runs a session from one thread: tensors over given memory, strings, the run itself, results.
 *
 * Owner: the thread that made it; it must be disposed before its session is released. Values (`TensorValue`) belong to the
 * caller until `release`; memory under `tensorOver` must stay mapped until then. A failed call leaves no value behind.
 * The hot calls (`tensorOver`, `run`, `release`) write into memory laid out once and make no garbage of their own.
 */
import { type Datatype, datatypeInfo, datatypeOfOrt } from '../tensor/datatype.ts';
import { CStrings } from './c-strings.ts';
import { Cells } from './cells.ts';
import { logLevelValue } from './environment.ts';
import { type OrtLibrary, ortLibrary } from './library.ts';
import type { SessionHandle } from './session.ts';

/** An OrtValue*. */
export type TensorValue = number & { readonly tensorValue: never };

export interface ValueDescription {
  /** Undefined for a value that is no tensor and for element types without a name in the protocol. */
  readonly datatype: Datatype | undefined;
  readonly shape: number[];
  /** Where the elements lie, row-major; 0 for BYTES, for no elements and for a value that is no tensor. */
  readonly address: number;
  /** Of the elements; for BYTES of the protocol's form, see `readStrings`. */
  readonly byteLength: number;
  readonly isTensor: boolean;
}

const ARENA_ALLOCATOR = 1;
const DEFAULT_MEMORY = 0;
const STRING = datatypeInfo('BYTES').ortType;
const LENGTH_BYTES = 4;
const RANK_MAX = 64;
const SHRINK_KEY = 'memory.enable_memory_arena_shrinkage';

export class Runner {
  /** For `cancelRun`, from any thread of the process, until `dispose`. */
  readonly cancelToken: number;
  readonly #library: OrtLibrary;
  readonly #session: number;
  readonly #memoryInfo: number;
  readonly #defaultAllocator: number;
  readonly #inputNames: CStrings;
  readonly #outputNames: CStrings;
  readonly #chosenNames: Cells;
  readonly #inputValues: Cells;
  readonly #outputValues: Cells;
  readonly #dims = new Cells(RANK_MAX);
  /** Out-parameter; also where tensors without elements point to. */
  readonly #out = new Cells(1);
  readonly #shrinkTargets: string;
  #shrinking = false;
  #disposed = false;

  constructor(handle: SessionHandle) {
    const library = ortLibrary();
    const { api, check, out } = library;
    const { inputs, outputs } = handle.signature;
    this.#library = library;
    this.#session = handle.session;
    this.#inputNames = new CStrings(inputs.map(({ name }) => name));
    this.#outputNames = new CStrings(outputs.map(({ name }) => name));
    this.#chosenNames = new Cells(outputs.length);
    this.#inputValues = new Cells(inputs.length);
    this.#outputValues = new Cells(outputs.length);
    this.#shrinkTargets = handle.provider === 'cpu' ? 'cpu:0' : `cpu:0;gpu:${handle.deviceId}`;
    this.#defaultAllocator = out((cell) => api.GetAllocatorWithDefaultOptions(cell));
    this.#memoryInfo = out((cell) => api.CreateCpuMemoryInfo(ARENA_ALLOCATOR, DEFAULT_MEMORY, cell));
    let runOptions = 0;
    try {
      runOptions = out((cell) => api.CreateRunOptions(cell));
      // A failed run is reported by its error; ONNX Runtime would print it as well.
      check(api.RunOptionsSetRunLogSeverityLevel(runOptions, logLevelValue('fatal')));
    } catch (error) {
      api.ReleaseRunOptions(runOptions);
      api.ReleaseMemoryInfo(this.#memoryInfo);
      throw error;
    }
    this.cancelToken = runOptions;
  }

  /**
   * A tensor over memory of the caller.
   *
   * @param address any value when there are no elements
   * @param byteLength at least what the shape takes
   * @param shape without -1
   * @throws OrtError when the memory is too small for the shape
   */
  tensorOver(datatype: Datatype, address: number, byteLength: number, shape: readonly number[]): TensorValue {
    const { api, check } = this.#library;
    this.#writeDims(shape);
    check(
      api.CreateTensorWithDataAsOrtValue(
        this.#memoryInfo,
        byteLength === 0 ? this.#out.address : address,
        byteLength,
        this.#dims.address,
        shape.length,
        datatypeInfo(datatype).ortType,
        this.#out.address,
      ),
    );
    return this.#out.get(0) as TensorValue;
  }

  /** A BYTES tensor of empty strings. @throws OrtError */
  stringTensor(shape: readonly number[]): TensorValue {
    const { api, check } = this.#library;
    this.#writeDims(shape);
    check(
      api.CreateTensorAsOrtValue(this.#defaultAllocator, this.#dims.address, shape.length, STRING, this.#out.address),
    );
    return this.#out.get(0) as TensorValue;
  }

  /** Sets element `index` (row-major) of a BYTES tensor to exactly these bytes, which are copied. @throws OrtError */
  setString(value: TensorValue, index: number, bytes: Uint8Array): void {
    const { api, check, copyTo } = this.#library;
    check(api.GetResizedStringTensorElementBuffer(value, index, bytes.byteLength, this.#out.address));
    if (bytes.byteLength > 0) {
      copyTo(this.#out.get(0), bytes, bytes.byteLength);
    }
  }

  /**
   * Runs the session. Blocks until it is done or cancelled.
   *
   * @param inputs one per input of the signature, in its order
   * @param outputIndices which outputs of the signature are wanted
   * @param outputs one per wanted output: a value that takes the result, or undefined, which is replaced by a new value that
   *   then belongs to the caller. After an error the array is as before.
   * @param shrinkArena whether to give unused memory of the arena back afterwards; costs time in the next run
   * @throws OrtError
   */
  run(
    inputs: readonly TensorValue[],
    outputIndices: readonly number[],
    outputs: (TensorValue | undefined)[],
    shrinkArena = false,
  ): void {
    const inputCount = this.#inputNames.count;
    const outputCount = outputIndices.length;
    if (inputs.length !== inputCount || outputs.length !== outputCount || outputCount > this.#outputNames.count) {
      throw new Error(`${inputs.length} inputs, ${outputs.length} outputs do not fit the session. This is a bug.`);
    }
    for (let i = 0; i < inputCount; i++) {
      this.#inputValues.set(i, inputs[i]!);
    }
    for (let i = 0; i < outputCount; i++) {
      const index = outputIndices[i]!;
      if (!(index >= 0 && index < this.#outputNames.count)) {
        throw new Error(`Output ${index} is not of the session. This is a bug.`);
      }
      this.#chosenNames.set(i, this.#outputNames.pointer(index));
      this.#outputValues.set(i, outputs[i] ?? 0);
    }
    if (shrinkArena !== this.#shrinking) {
      this.#setShrinking(shrinkArena);
    }
    const { api, check } = this.#library;
    check(
      api.Run(
        this.#session,
        this.cancelToken,
        this.#inputNames.address,
        this.#inputValues.address,
        inputCount,
        this.#chosenNames.address,
        outputCount,
        this.#outputValues.address,
      ),
    );
    for (let i = 0; i < outputCount; i++) {
      outputs[i] ??= this.#outputValues.get(i) as TensorValue;
    }
  }

  /** What a value is and where its elements lie. The address holds until the value is released. @throws OrtError */
  describe(value: TensorValue): ValueDescription {
    const { api, check } = this.#library;
    check(api.IsTensor(value, this.#out.address));
    if (this.#out.int(0) === 0) {
      return {
        datatype: undefined,
        shape: [],
        address: 0,
        byteLength: 0,
        isTensor: false,
      };
    }
    check(api.GetTensorTypeAndShape(value, this.#out.address));
    const info = this.#out.get(0);
    let elementType: number;
    let elementCount: number;
    const shape: number[] = [];
    try {
      check(api.GetTensorElementType(info, this.#out.address));
      elementType = this.#out.int(0);
      check(api.GetTensorShapeElementCount(info, this.#out.address));
      elementCount = this.#out.get(0);
      check(api.GetDimensionsCount(info, this.#out.address));
      const rank = this.#out.get(0);
      assertRank(rank);
      check(api.GetDimensions(info, this.#dims.address, rank));
      for (let axis = 0; axis < rank; axis++) {
        shape.push(this.#dims.get(axis));
      }
    } finally {
      api.ReleaseTensorTypeAndShapeInfo(info);
    }
    const datatype = datatypeOfOrt(elementType);
    if (elementType === STRING) {
      return {
        datatype,
        shape,
        address: 0,
        byteLength: this.stringsByteLength(value),
        isTensor: true,
      };
    }
    if (elementCount === 0) {
      return { datatype, shape, address: 0, byteLength: 0, isTensor: true };
    }
    check(api.GetTensorMutableData(value, this.#out.address));
    const address = this.#out.get(0);
    check(api.GetTensorSizeInBytes(value, this.#out.address));
    return {
      datatype,
      shape,
      address,
      byteLength: this.#out.get(0),
      isTensor: true,
    };
  }

  /** Copies the elements of a tensor that is not BYTES to the start of `target`. @throws OrtError */
  readElements(value: TensorValue, target: Uint8Array): void {
    const { address, byteLength } = this.describe(value);
    if (byteLength > target.byteLength) {
      throw new RangeError(`${byteLength} bytes do not fit ${target.byteLength}. This is a bug.`);
    }
    if (byteLength > 0) {
      this.#library.copyFrom(target, address, byteLength);
    }
  }

  /** Size of a BYTES tensor in the protocol's form: 4 bytes of length and the bytes themselves per element. @throws OrtError */
  stringsByteLength(value: TensorValue): number {
    const { api, check } = this.#library;
    const count = this.#elementCount(value);
    check(api.GetStringTensorDataLength(value, this.#out.address));
    return count * LENGTH_BYTES + this.#out.get(0);
  }

  /**
   * Writes a BYTES tensor to `target` in the protocol's form: per element a little-endian u32 length and the bytes.
   *
   * @param target of exactly `stringsByteLength` bytes
   * @throws OrtError
   */
  readStrings(value: TensorValue, target: Uint8Array): void {
    const { api, check } = this.#library;
    const count = this.#elementCount(value);
    if (count === 0) {
      return;
    }
    // All characters land at the end of the target, then move to their places front to back: element i goes to a lower
    // address than it came from, since count − i − 1 lengths still lie between.
    const head = count * LENGTH_BYTES;
    const content = target.subarray(head);
    const offsets = new Cells(count);
    check(api.GetStringTensorContent(value, content, content.byteLength, offsets.address, count));
    const lengths = new DataView(target.buffer, target.byteOffset, target.byteLength);
    let position = 0;
    for (let i = 0; i < count; i++) {
      const start = offsets.get(i);
      const end = i + 1 < count ? offsets.get(i + 1) : content.byteLength;
      lengths.setUint32(position, end - start, true);
      position += LENGTH_BYTES;
      target.copyWithin(position, head + start, head + end);
      position += end - start;
    }
  }

  release(value: TensorValue): void {
    this.#library.api.ReleaseValue(value);
  }

  /** Makes runs possible again after `cancelRun`. */
  resetCancel(): void {
    const { api, check } = this.#library;
    check(api.RunOptionsUnsetTerminate(this.cancelToken));
  }

  /** Frees what the runner holds. No run may be under way, and nobody may cancel any more. A second call does nothing. */
  dispose(): void {
    if (!this.#disposed) {
      this.#disposed = true;
      this.#library.api.ReleaseRunOptions(this.cancelToken);
      this.#library.api.ReleaseMemoryInfo(this.#memoryInfo);
    }
  }

  #writeDims(shape: readonly number[]): void {
    assertRank(shape.length);
    for (let axis = 0; axis < shape.length; axis++) {
      this.#dims.set(axis, shape[axis]!);
    }
  }

  #elementCount(value: TensorValue): number {
    const { api, check } = this.#library;
    check(api.GetTensorTypeAndShape(value, this.#out.address));
    const info = this.#out.get(0);
    try {
      check(api.GetTensorShapeElementCount(info, this.#out.address));
      return this.#out.get(0);
    } finally {
      api.ReleaseTensorTypeAndShapeInfo(info);
    }
  }

  #setShrinking(shrinking: boolean): void {
    const { api, check } = this.#library;
    check(api.AddRunConfigEntry(this.cancelToken, SHRINK_KEY, shrinking ? this.#shrinkTargets : ''));
    this.#shrinking = shrinking;
  }
}

/**
 * Makes the run that is under way with this token fail soon, and every later one until the runner's `resetCancel`.
 * May be called from any thread of the process while the runner is not disposed.
 */
export function cancelRun(cancelToken: number): void {
  const { api, check } = ortLibrary();
  check(api.RunOptionsSetTerminate(cancelToken));
}

function assertRank(rank: number): void {
  if (rank > RANK_MAX) {
    throw new Error(`A tensor of ${rank} dimensions passes the limit of ${RANK_MAX}. This is a bug.`);
  }
}
