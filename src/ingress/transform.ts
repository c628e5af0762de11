/**
 * The transform of one served version as the ingress sees it: what clients send and get because of it, and its calls.
 *
 *     request as clients send it ─▶ before ─▶ request as it is run … results ─▶ after ─▶ outputs as clients get them
 *
 * Owner: the serving half of the version.
 */
import { BatchportError } from '../config/errors.ts';
import type { TransformConfig, TransformTensor } from '../config/model-config.ts';
import type { BoundRequest } from '../protocol/bound-request.ts';
import type { ModelInterface } from '../protocol/model-interface.ts';
import type { RequestDecoder } from '../protocol/request-decoder.ts';
import type { OutputDraft } from '../protocol/request-reader.ts';
import type { OutputTensor } from '../protocol/response-encoder.ts';
import type { TensorSpec } from '../tensor/signature.ts';
import { copyOf } from './output-work.ts';
import type { QueueEnd } from './served-model.ts';
import { TransformThreads } from './transform-threads.ts';

/** A model with the inputs and outputs that its transform gives it. */
export function clientInterface(run: ModelInterface, transform: TransformConfig | undefined): ModelInterface {
  if (transform === undefined) return run;
  const { inputs, outputs } = transform;
  const signature = {
    ...run.signature,
    inputs: inputs?.map(specOf) ?? run.signature.inputs,
    outputs: outputs?.map(specOf) ?? run.signature.outputs,
  };
  // How many rows the inputs of a client are, before() decides.
  return inputs === undefined ? { ...run, signature } : { ...run, signature, batching: false, maxBatchSize: 0 };
}

function specOf({ name, datatype, shape }: TransformTensor): TensorSpec {
  return { name, datatype, shape, symbols: shape.map(() => '') };
}

export class Transform {
  readonly #threads: TransformThreads;
  readonly #client: ModelInterface;
  /** Of what is run. */
  readonly #decoder: RequestDecoder;
  readonly #changesInputs: boolean;
  /** Whether outputs go through after(). */
  readonly changesOutputs: boolean;
  /** All that the model has, for after(). */
  readonly #everyOutput: readonly OutputDraft[];

  constructor(
    transform: TransformConfig & { readonly file: string },
    client: ModelInterface,
    decoder: RequestDecoder,
    { transformEntry: entry, budget, log }: QueueEnd,
  ) {
    const { file, threads, timeoutMs, inputs, outputs } = transform;
    this.#threads = new TransformThreads({ entry, file, threads, timeoutMs, budget, log });
    this.#client = client;
    this.#decoder = decoder;
    this.#changesInputs = inputs !== undefined;
    this.changesOutputs = outputs !== undefined;
    this.#everyOutput = decoder.model.signature.outputs.map((_, index) => {
      return { index, binary: true, shared: undefined, classes: 0 };
    });
  }

  /**
   * What is to be run for a request.
   *
   * @param wanted whether the client is still there.
   * @throws BAD_TENSOR, TRANSFORM_FAILED, QUEUE_FULL, CLIENT_CLOSED
   */
  async before(received: BoundRequest, wanted: () => boolean): Promise<BoundRequest> {
    const { template, id, shared } = received;
    if (this.changesOutputs && template.classesKey !== '') {
      throw new BatchportError(
        'BAD_TENSOR',
        `outputs of model '${this.#client.name}' come from its transform and have no classes; ask for them without 'classification'`,
      );
    }
    const given = this.#client.signature.inputs;
    const tensors = given.map((_, n) => {
      const dims = template.shapes[n]!;
      const data = shared === undefined ? received.inputs[n]! : copyOf(shared.inputs[n]!);
      return { shape: template.whole ? dims : [template.rows, ...dims], data };
    });
    const outputs = this.changesOutputs
      ? this.#everyOutput
      : template.outputs.map(({ index, binary, classes }) => ({ index, binary, classes, shared: undefined }));
    if (!this.#changesInputs) return this.#decoder.bindTensors(tensors, outputs, received);
    const { inputs } = this.#decoder.model.signature;
    const made = await this.#threads.call({ step: 'before', id, given, tensors, wanted: inputs }, wanted);
    return this.#decoder.bindTensors(made, outputs, received);
  }

  /**
   * The outputs that a request asks for.
   *
   * @param results of everything that the model gives, in the order of its outputs.
   * @throws BAD_TENSOR, TRANSFORM_FAILED, QUEUE_FULL, CLIENT_CLOSED
   */
  async after(
    { template, id }: BoundRequest,
    results: readonly OutputTensor[],
    wanted: () => boolean,
  ): Promise<readonly OutputTensor[]> {
    const specs = this.#client.signature.outputs;
    const call = { step: 'after' as const, id, given: this.#decoder.model.signature.outputs, tensors: results };
    const made = await this.#threads.call({ ...call, wanted: specs }, wanted);
    return template.outputs.map(({ index }) => made[index]!);
  }

  close(): void {
    this.#threads.close();
  }
}
