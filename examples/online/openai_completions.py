"""Complete text over HTTP: several prompts in one request, with log-probabilities."""

from _connection import API_KEY, MODEL, URL
from openai import OpenAI


def main() -> None:
    """Complete two prompts and print each token with its log-probability."""
    client = OpenAI(base_url=f"{URL}/v1", api_key=API_KEY)
    prompts = ["The capital of France is", "1, 2, 3,"]
    answer = client.completions.create(model=MODEL, prompt=prompts, max_tokens=6, temperature=0, logprobs=1)
    for choice in answer.choices:
        print(repr(choice.text))
        print(list(zip(choice.logprobs.tokens, choice.logprobs.token_logprobs, strict=True)))


if __name__ == "__main__":
    main()
