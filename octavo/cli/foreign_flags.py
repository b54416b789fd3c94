"""Flags of vLLM's other commands, such as its benchmarks, to distinguish unsupported flags from typing errors.

Those of ``vllm serve`` are in :mod:`octavo.config.vllm_table`.
"""

_NAMES = """
    --append-result --asr-max-audio-len-sec --asr-min-audio-len-sec --async-engine --backend --base-url
    --batch-size --bfcl-categories --blazedit-max-distance --blazedit-min-distance --burstiness --case
    --chat-template-kwargs --custom-ensure-client-side-data --custom-output-len --dataset-name --dataset-path
    --disable-detokenize --disable-shuffle --disable-tqdm --dry-run --enable-metrics --enable-multimodal-chat
    --endpoint --exclude-drafter --extra-body --frequency-penalty --goodput --header --hf-enable-torch-compile
    --hf-max-batch-size --hf-name --hf-output-len --hf-split --hf-subset --ignore-eos --input-file --input-len
    --insecure --iters --kv-init --kv-len-jitter --label --logprobs --lora-assignment --lora-path --max-concurrency
    --max-inflight --max-tokens --metadata --metric-percentiles --min-p --model-name --n --no-oversample
    --no-reranker --no-stream --num-iters --num-iters-cold --num-iters-warm --num-iters-warmup --num-prompts
    --num-warmups --output-file --output-json --output-len --output-tmp-dir --percentile-metrics
    --plot-dataset-stats --plot-timeline --prefix-len --prefix-repetition-num-prefixes
    --prefix-repetition-output-len --prefix-repetition-prefix-len --prefix-repetition-suffix-len
    --prequeue-requests --presence-penalty --probe-request-rate --profile --profile-dir --quick --ramp-up-end-rps
    --ramp-up-start-rps --ramp-up-strategy --random-batch-size --random-input-len
    --random-mm-base-items-per-request --random-mm-bucket-config --random-mm-limit-mm-per-prompt
    --random-mm-num-mm-items-range-ratio --random-output-len --random-prefix-len --random-range-ratio
    --ready-check-timeout-sec --repetition-penalty --request-id-prefix --request-rate --result-dir
    --result-filename --routing --samples --save-detailed --save-result --seed-listen-host --seed-listen-port
    --seed-source-host --seed-source-port --seed-token --self-timed --shapes --sharegpt-output-len
    --skip-chat-template --spec-bench-category --spec-bench-output-len --speed-bench-category
    --speed-bench-dataset-subset --speed-bench-output-len --stats --system-prompt --temperature
    --timed-trace-chunk-hash-size --timed-trace-label-hash-ids --timed-trace-label-input-length
    --timed-trace-label-output-length --timed-trace-label-timestamp --timed-trace-sec-multiplier
    --timeline-itl-thresholds --top-k --top-p --url --use-beam-search --weight-cache-draft-master-port
    --weight-cache-health-host --weight-cache-health-port --weight-cache-master-port --weight-cache-socket-dir
"""

VLLM_FLAGS = frozenset(_NAMES.split())
