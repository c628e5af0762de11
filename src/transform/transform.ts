/**
 * `batchport/transform`: what a model's transform is, for those who write one.
 *
 *     request ─▶ before(request) ─▶ the model, in a batch with others ─▶ postprocess ─▶ after(outputs, request) ─▶ answer
 *
 * A transform is an ES module in the model's directory, named by `transform.module` of its config.json. It exports `before` where `transform.inputs` says what clients
 * send, and `after` where `transform.outputs` says what they get. Both run in a thread of their own beside the server's event loops, one call at a time for each
 * thread; they may be asynchronous. Tensors that come in belong to the function, those that it returns to the server.
 */
import type { DataOf } from '../client/data.ts';
import type { Datatype } from '../tensor/datatype.ts';

/**
 * A tensor: `data` is flat and row-major, as many elements as the product of `shape`. BOOL holds 0 and 1; FP16 and BF16 hold raw bits; BYTES holds a Uint8Array for each
 * element.
 */
export type Tensor = {
  [D in Datatype]: { readonly datatype: D; readonly shape: readonly number[]; readonly data: DataOf[D] };
}[Datatype];

/** By name. Has no prototype: a tensor may be called anything. */
export type Tensors = Readonly<Record<string, Tensor>>;

export interface TransformRequest {
  /** As the client gave it. */
  readonly id: string | undefined;
  /** Each of `transform.inputs`. */
  readonly inputs: Tensors;
}

export interface TransformTools {
  /** The class of this module, for transforms that lie where `batchport/transform` cannot be imported. */
  readonly ClientError: typeof ClientError;
}

/** Gives every input of the model. */
export type Before = (request: TransformRequest, tools: TransformTools) => Tensors | Promise<Tensors>;

/** Gives each of `transform.outputs` from the outputs of the model, after its `postprocess`. */
export type After = (
  outputs: Tensors,
  request: Pick<TransformRequest, 'id'>,
  tools: TransformTools,
) => Tensors | Promise<Tensors>;

/** What the client sent cannot be used: the answer is a 400 with the message. Anything else that is thrown is a fault of the transform, and a 500. */
export class ClientError extends Error {
  override name = 'ClientError';
}
