/**
 * The result of an inference as the caller gets it. Arrays in it belong to the caller.
 */
import type { Datatype } from '../tensor/datatype.ts';
import type { DataOf } from './data.ts';
import type { Parameters } from './request.ts';

const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** An output tensor of a known datatype. */
export class OutputTensor<D extends Datatype = Datatype> {
  readonly name: string;
  readonly datatype: D;
  readonly shape: readonly number[];
  /** Flat and row-major. */
  readonly data: DataOf[D];
  readonly parameters: Parameters;

  constructor(name: string, datatype: D, shape: readonly number[], data: DataOf[D], parameters: Parameters) {
    this.name = name;
    this.datatype = datatype;
    this.shape = shape;
    this.data = data;
    this.parameters = parameters;
  }

  /**
   * Elements of a BYTES output as strings.
   *
   * @throws TypeError for another datatype, RangeError for an element that is not UTF-8.
   */
  text(): string[] {
    if (this.datatype !== 'BYTES') throw new TypeError(`output "${this.name}" is ${this.datatype}, not BYTES`);
    return (this.data as Uint8Array[]).map((element, index) => {
      try {
        return decoder.decode(element);
      } catch (cause) {
        throw new RangeError(`element ${index} of output "${this.name}" is not UTF-8`, { cause });
      }
    });
  }
}

/** An output tensor whose datatype decides the type of its data. */
export type InferOutput = { [D in Datatype]: OutputTensor<D> }[Datatype];

export class InferResult {
  readonly modelName: string;
  /** The version that answered; '' from a server that does not tell. */
  readonly modelVersion: string;
  readonly id: string | undefined;
  readonly parameters: Parameters;
  /** In the order of the request, or of the model. */
  readonly outputs: readonly InferOutput[];

  constructor(fields: Pick<InferResult, 'modelName' | 'modelVersion' | 'id' | 'parameters' | 'outputs'>) {
    this.modelName = fields.modelName;
    this.modelVersion = fields.modelVersion;
    this.id = fields.id;
    this.parameters = fields.parameters;
    this.outputs = fields.outputs;
  }

  /**
   * An output by name. With a datatype, its data has that type.
   *
   * @throws RangeError when there is no such output, TypeError when it has another datatype.
   */
  output(name: string): InferOutput;
  output<D extends Datatype>(name: string, datatype: D): OutputTensor<D>;
  output(name: string, datatype?: Datatype): InferOutput {
    const found = this.outputs.find((output) => output.name === name);
    if (found === undefined) {
      const names = this.outputs.map((output) => output.name).join(', ');
      throw new RangeError(`no output named "${name}"; there are: ${names}`);
    }
    if (datatype !== undefined && found.datatype !== datatype) {
      throw new TypeError(`output "${name}" is ${found.datatype}, not ${datatype}`);
    }
    return found;
  }
}
