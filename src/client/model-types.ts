/**
 * Requests and results of a model whose tensors are known to the compiler: as `bin/serve inspect FILE --types` prints them.
 *
 *     import type { Mnist } from './mnist.d.ts';
 *     const result = await client.infer<Mnist>('mnist', { inputs: [{ name: 'image', datatype: 'FP32', shape: [1, 784], data }] });
 *     result.output('scores').data; // Float32Array
 *
 * Only the compiler knows them: a server that has another model under the name is found out by its answer to the request.
 */
import type { Datatype } from '../tensor/datatype.ts';
import type { InputDataOf } from './data.ts';
import type { InferRequest, Parameters, RequestedOutput } from './request.ts';
import type { InferResult, OutputTensor } from './result.ts';

/** Datatypes of a model's tensors, by their names. */
export interface ModelTypes {
  readonly inputs: { readonly [name: string]: Datatype };
  readonly outputs: { readonly [name: string]: Datatype };
}

/** One of the model's inputs. */
export type TypedInput<M extends ModelTypes> = {
  [Name in keyof M['inputs'] & string]: {
    readonly name: Name;
    readonly datatype: M['inputs'][Name];
    readonly shape: readonly number[];
    readonly data: InputDataOf[M['inputs'][Name]];
    readonly parameters?: Parameters | undefined;
  };
}[keyof M['inputs'] & string];

type OutputName<M extends ModelTypes> = keyof M['outputs'] & string;

export type TypedRequest<M extends ModelTypes> = Omit<InferRequest, 'inputs' | 'outputs'> & {
  readonly inputs: readonly TypedInput<M>[];
  readonly outputs?: readonly (OutputName<M> | (RequestedOutput & { readonly name: OutputName<M> }))[] | undefined;
};

export type TypedResult<M extends ModelTypes> = Omit<InferResult, 'output'> & {
  /** @throws RangeError when it was not asked for */
  output<Name extends OutputName<M>>(name: Name): OutputTensor<M['outputs'][Name]>;
};
