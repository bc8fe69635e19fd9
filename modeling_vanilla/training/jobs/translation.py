"""Training a translation model: the paper's task."""

from datasets import DatasetDict
from transformers import PreTrainedModel
from transformers.trainer_utils import IntervalStrategy

from modeling_vanilla.data import FilterReport, PairTexts, load_corpus, prepare_pairs
from modeling_vanilla.decoding.lengths import EARLY_STOPPING, max_new_tokens
from modeling_vanilla.decoding.translator import Translator, as_line
from modeling_vanilla.evaluation.metrics import corpus_scores, generation_metrics, tokenize_option
from modeling_vanilla.modeling_vanilla import VanillaForConditionalGeneration
from modeling_vanilla.training.jobs.job import Job, RunResult, test_sets
from modeling_vanilla.training.trainer import VanillaTrainer


class Translation(Job):
    """From pairs of texts to a `VanillaForConditionalGeneration`."""

    pairs: DatasetDict
    report: FilterReport

    def prepare(self) -> None:
        data = self.recipe.data
        self.corpus = load_corpus(data)
        self.processor = self.make_tokenizer(PairTexts(self.corpus["train"]))
        self.processor.init_kwargs["target_lang"] = data.target_lang  # saved with it, for whoever scores the model
        train, self.report = prepare_pairs(self.corpus["train"], self.processor, data, training=True)
        validation, _ = prepare_pairs(self.corpus["validation"], self.processor, data, training=False)
        self.pairs = DatasetDict(train=train, validation=validation)

    def data_report(self) -> str:
        return str(self.report)

    def build(self) -> PreTrainedModel:
        args, longest = self.recipe.training, self.recipe.data.max_length
        if args.predict_with_generate and args.eval_strategy != IntervalStrategy.NO:  # lines that aren't filtered
            longest = max(longest, *self.pairs["validation"]["source_length"][:])
        self.check_positions(max_new_tokens(longest) + 1, self.pairs["validation"])
        model = self.make_model(VanillaForConditionalGeneration, self.text_config())
        search = model.generation_config
        search._from_model_config = False  # or what the library doesn't know is lost when it is loaded
        # generate() has no limit relative to the source, so a plain model gets the longest source's.
        search.max_length = max_new_tokens(self.recipe.data.max_length)
        for name in ("num_beams", "length_penalty", "length_penalty_type", "early_stopping"):
            if name in self.recipe.settings or not self.recipe.model.init_from:  # a trained model brings its own
                value = getattr(self.recipe.model, name)
                setattr(search, name, EARLY_STOPPING.get(value, value))
        if search.num_beams == 1:  # greedy search has no use for them, and the library saves no such pair
            search.length_penalty = search.early_stopping = None
        search.validate(strict=True)  # as saving does, when there is a model to lose
        return model

    def trainer(self, model: PreTrainedModel) -> VanillaTrainer:
        args = self.recipe.training
        score = generation_metrics(
            self.processor,
            measures=self.recipe.model.measures,
            tokenize=tokenize_option(self.recipe.data.target_lang),
        )
        return VanillaTrainer(
            model=model,
            args=args,
            train_dataset=self.pairs["train"],
            eval_dataset=self.pairs["validation"],
            processing_class=self.processor,
            compute_metrics=score if args.predict_with_generate else None,
        )

    def test(self, result: RunResult) -> None:
        """Translates each test set once, keeps the translations beside the model, and scores them."""
        translator = Translator.from_pretrained(self.folder, device=self.recipe.training.device)
        for name in test_sets(self.corpus):
            sources, references = self.corpus[name]["source"][:], self.corpus[name]["target"][:]
            hypotheses = [translation.text for translation in translator.translate(sources)]
            file = self.folder / "translations" / f"{name}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(f"{as_line(text)}\n" for text in hypotheses), encoding="utf-8")
            tokenize = tokenize_option(self.recipe.data.target_lang)
            scores = corpus_scores(hypotheses, references, measures=self.recipe.model.measures, tokenize=tokenize)
            result.results += [{"dataset": name, **score.to_dict()} for score in scores]
            result.samples = result.samples or [
                {"source": source, "translation": hypothesis, "target": reference}
                for source, hypothesis, reference in zip(sources[:10], hypotheses, references, strict=False)
            ]


__all__ = ["Translation"]
