/**
 * Whether a model has the tensors that its configuration names: a configuration of another model, or a misspelt name, is found out at the load and not by the first
 * client.
 */
import type { DeclaredTensor } from '../config/model-config.ts';
import type { ModelSignature } from '../tensor/signature.ts';

/** What is wrong, for people; undefined when nothing is. */
export function declaredProblem(
  declared: readonly DeclaredTensor[],
  { inputs, outputs, skippedOutputs }: ModelSignature,
): string | undefined {
  for (const { kind, name, datatype } of declared) {
    const tensors = kind === 'input' ? inputs : outputs;
    const found = tensors.find((tensor) => tensor.name === name);
    if (found === undefined) {
      if (kind === 'output' && skippedOutputs.some((output) => output.name === name)) continue;
      const names = tensors.map((tensor) => JSON.stringify(tensor.name)).join(', ');
      return `its configuration names the ${kind} ${JSON.stringify(name)}, but the ${kind}s of the model are ${names}`;
    }
    if (datatype !== undefined && datatype !== found.datatype) {
      return `its configuration says that the ${kind} ${JSON.stringify(name)} is ${datatype}, but in the model it is ${found.datatype}`;
    }
  }
  return undefined;
}
