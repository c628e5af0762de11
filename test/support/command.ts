/**
 * How a command of this folder begins and ends.
 *
 * Exit code: 0 unless `main` sets another one, 1 when it throws, 2 for wrong arguments.
 *
 * @param readOptions undefined when help was asked for; throws for arguments that make no sense.
 */
export async function runCommand<Options>(
  readOptions: () => Options | undefined,
  help: string,
  main: (options: Options) => Promise<void>,
): Promise<void> {
  let options: Options | undefined;
  try {
    options = readOptions();
  } catch (error) {
    console.error((error as Error).message);
    process.exitCode = 2;
    return;
  }
  if (options === undefined) {
    console.log(help);
    return;
  }
  try {
    await main(options);
  } catch (error) {
    console.error(error);
    process.exitCode = 1;
  }
}
