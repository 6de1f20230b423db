// A conversation of LM Studio's own JavaScript client with the server at argv[2]; prints one line of JSON.
import { createRequire } from "node:module";

const { LMStudioClient } = createRequire(`${process.argv[3]}/`)("@lmstudio/sdk");
const client = new LMStudioClient({ baseUrl: process.argv[2].replace("http", "ws"), verboseErrorMessages: false });
const downloaded = (await client.system.listDownloadedModels()).map((model) => model.modelKey);
const model = await client.llm.model("qwen3-4b");
const pieces = [];
const prediction = model.respond("hi", { maxTokens: 50 });
for await (const { content } of prediction) pieces.push(content);
const { stats } = await prediction.result();
let missing = "";
try { await client.llm.model("nope"); } catch (error) { missing = error.message; }
const tokens = await model.countTokens("one two");
await model.unload();
const loaded = (await client.llm.listLoaded()).length;
console.log(JSON.stringify({ downloaded, pieces, reason: stats.stopReason, missing, tokens, loaded }));
process.exit(0);
