// Vercel's `ai` holds a conversation with tools; prints one line of JSON.
// Arguments: the server's URL, the folder of node_modules, a provider, `whole` or `streamed`, the question.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [url, folder, provider, mode, prompt] = process.argv.slice(2);
const require = createRequire(`${folder}/`);
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const { generateText, jsonSchema, stepCountIs, streamText, tool } = await load("ai");

const options = { baseURL: `${url}/v1`, apiKey: process.env.PYAGENT_KEY, name: "pyagent", includeUsage: true };
const thinking = { type: "enabled", budgetTokens: 1024 };
const providers = {
  openai: async () => (await load("@ai-sdk/openai")).createOpenAI(options)("default"), // its default: responses
  chat: async () => (await load("@ai-sdk/openai")).createOpenAI(options).chat("default"),
  compatible: async () => (await load("@ai-sdk/openai-compatible")).createOpenAICompatible(options)("default"),
  anthropic: async () => (await load("@ai-sdk/anthropic")).createAnthropic(options)("default"),
};
const results = { "weather Rome": "sun, 25", "weather Oslo": "snow, 5", "clock Oslo": "12:00" };
const city = { type: "string", enum: ["Rome", "Oslo", "Atlantis"] };
const inputSchema = jsonSchema({ type: "object", properties: { city }, required: ["city"] });
const ran = [];
const make = (name) => tool({
  description: `The ${name} in a city.`,
  inputSchema,
  execute: async (input) => {
    ran.push([name, input.city]);
    return results[`${name} ${input.city}`];
  },
});
const asked = {
  model: await providers[provider](),
  tools: { weather: make("weather"), clock: make("clock") },
  stopWhen: stepCountIs(5),
  maxOutputTokens: 4000,
  maxRetries: 0,
  prompt,
  providerOptions: { openai: { reasoningSummary: "auto", forceReasoning: true }, anthropic: { thinking } },
};
const answer = mode === "whole" ? await generateText(asked) : streamText(asked);
const steps = await answer.steps;
console.log(JSON.stringify({
  ran,
  text: await answer.text,
  thoughts: steps.map((step) => step.reasoningText ?? ""),
  reasons: steps.map((step) => step.finishReason),
  ids: steps.map((step) => step.toolResults.map((result) => result.toolCallId)),
  calls: steps.map((step) => step.toolCalls.map((call) => call.toolCallId)),
  tokens: steps.map((step) => step.usage.outputTokens),
}));
process.exit(0);
