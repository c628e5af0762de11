/**
 * What has to be done with the outputs of a model before they are written into an answer: nothing mostly.
 *
 * Owner: the model's serving half, with the texts that its configuration names.
 */
import { BatchportError } from '../config/errors.ts';
import { classTextBytes } from '../postprocess/classes.ts';
import type { Tensor } from '../postprocess/numbers.ts';
import { type PlannedOutput, planOutputs } from '../postprocess/planned-outputs.ts';
import type { OutputJob } from '../postprocess/process.ts';
import { lineCount, type TextLines } from '../postprocess/text-lines.ts';
import type { BoundRequest, OutputRequest } from '../protocol/bound-request.ts';
import type { ServedModel } from '../protocol/control.ts';
import type { OutputTensor } from '../protocol/response-encoder.ts';
import type { TensorBytes } from '../queue/tensor-source.ts';
import { receiveTexts } from '../repository/text-files.ts';
import type { ModelSignature } from '../tensor/signature.ts';

/** Work on so many bytes of tensors takes about as long as one text of a class. */
const TEXT_COSTS_BYTES = 128;

export class OutputWork {
  readonly #signature: ModelSignature;
  readonly #planned: readonly PlannedOutput[];
  readonly #texts: ReadonlyMap<string, TextLines>;
  readonly #rowDims: number;

  constructor({ signature, batching, outputs, texts }: NonNullable<ServedModel['serving']>) {
    this.#signature = signature;
    this.#texts = texts === undefined ? new Map() : receiveTexts(texts);
    const batched = batching.maxBatchSize > 0;
    this.#rowDims = batched ? 1 : 0;
    const lines = (file: string) => lineCount(this.#text(file)!);
    this.#planned = planOutputs({ signature, batched, lines }, outputs);
  }

  /** Whether there is anything to do for an output as it is asked for. */
  isNeeded({ index, classes }: OutputRequest): boolean {
    return classes > 0 || this.#planned[index]!.steps.length > 0;
  }

  /** How much work the outputs of a request are, in bytes of tensors. */
  sizeOf({ template }: BoundRequest, outputs: readonly OutputTensor[]): number {
    let bytes = 0;
    for (let n = 0; n < outputs.length; n++) {
      const wanted = template.outputs[n]!;
      if (!this.isNeeded(wanted)) continue;
      bytes += outputs[n]!.data.length + TEXT_COSTS_BYTES * wanted.classes * template.rows;
    }
    return bytes;
  }

  /**
   * Bytes that an answer holds for a row of an output, before or after the work, whichever is more.
   *
   * @param elements of a row; undefined where the run decides, and nothing is counted but texts.
   */
  rowBytes({ index, classes }: OutputRequest, elements: number | undefined, bytes: number): number {
    const { labels } = this.#planned[index]!;
    return classes > 0 ? Math.max(bytes, classTextBytes(classes, elements, this.#text(labels))) : bytes;
  }

  /** The work for output `n` of a request, which needs it. The tensor is only looked at. */
  jobOf(request: BoundRequest, n: number, { shape, data }: OutputTensor): OutputJob {
    const { index, classes } = request.template.outputs[n]!;
    const { name, datatype } = this.#signature.outputs[index]!;
    const { steps, labels } = this.#planned[index]!;
    return {
      name,
      tensor: { datatype, shape, data },
      steps,
      masks: steps.map((step) => (step.op === 'mean_pool' ? this.#inputOf(request, step.mask) : undefined)),
      dictionaries: steps.map((step) => (step.op === 'ctc_decode' ? this.#text(step.dictionary) : undefined)),
      rowDims: this.#rowDims,
      classes,
      labels: this.#text(labels),
    };
  }

  /**
   * The same request, with masks in memory of their own where they are in shared memory: they are needed after the run too, and might be others by then.
   *
   * @throws BAD_TENSOR where one cannot be had
   */
  withOwnMasks(request: BoundRequest): BoundRequest {
    const { shared, template } = request;
    if (shared === undefined) return request;
    const inputs = [...request.inputs];
    for (const { index } of template.outputs) {
      for (const step of this.#planned[index]!.steps) {
        const input = step.op === 'mean_pool' ? this.#inputIndex(step.mask) : -1;
        if (input !== -1) inputs[input] = copyOf(shared.inputs[input]!);
      }
    }
    return { ...request, inputs };
  }

  #inputIndex(name: string | undefined): number {
    return this.#signature.inputs.findIndex((input) => input.name === name);
  }

  #inputOf({ template, inputs }: BoundRequest, name: string | undefined): Tensor | undefined {
    const index = this.#inputIndex(name);
    if (index === -1) return undefined;
    const { datatype } = this.#signature.inputs[index]!;
    const dims = template.shapes[index]!;
    return { datatype, shape: template.whole ? dims : [template.rows, ...dims], data: inputs[index]! };
  }

  #text(file: string | undefined): TextLines | undefined {
    return file === undefined ? undefined : this.#texts.get(file);
  }
}

/** Bytes of an input in memory, wherever they are. @throws BAD_TENSOR */
export function copyOf(bytes: TensorBytes): Uint8Array {
  if (bytes instanceof Uint8Array) return bytes;
  const copy = new Uint8Array(bytes.length);
  bytes.copyTo(copy);
  if (bytes.fault !== undefined) throw new BatchportError('BAD_TENSOR', bytes.fault);
  return copy;
}
