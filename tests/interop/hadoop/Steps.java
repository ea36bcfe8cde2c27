import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.EtagSource;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.fs.s3a.RemoteFileChangedException;
import org.apache.hadoop.fs.s3a.S3AFileSystem;
import org.apache.hadoop.mapreduce.JobContext;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.hadoop.mapreduce.TaskAttemptID;
import org.apache.hadoop.mapreduce.TaskType;
import org.apache.hadoop.mapreduce.lib.output.PathOutputCommitter;
import org.apache.hadoop.mapreduce.lib.output.PathOutputCommitterFactory;
import org.apache.hadoop.mapreduce.task.JobContextImpl;
import org.apache.hadoop.mapreduce.task.TaskAttemptContextImpl;

/** What programs do by s3a, one step after another; an error ends it. `Steps s3a://bucket/folder` */
public class Steps {
  private static final String IF_NONE = "fs.option.create.conditional.overwrite";
  private static final String IF_MATCH = "fs.option.create.conditional.overwrite.etag";
  private static final byte[] LARGE = bytes(12_000_000);
  private final S3AFileSystem fs;
  private final Path root;
  private final Configuration configuration;

  Steps(Path root, Configuration configuration) throws IOException {
    this.root = root;
    this.configuration = configuration;
    fs = (S3AFileSystem) root.getFileSystem(configuration);
  }

  public static void main(String[] args) throws Exception {
    Steps steps = new Steps(new Path(args[0]), new Configuration());
    steps.createsOnlyWhatIsAbsent(false);
    steps.createsOnlyWhatIsAbsent(true);
    steps.replacesOnlyWhatItHasSeen();
    steps.listsInPages();
    steps.renamesFoldersWithLargeFiles();
    steps.commits("magic");
    steps.commits("directory");
    expect(!steps.fs.listUploads("").hasNext(), "no upload in parts is left open");
    System.out.println("ALL STEPS");
    System.exit(0);
  }

  private void createsOnlyWhatIsAbsent(boolean inParts) throws IOException {
    Path path = new Path(root, inParts ? "once-in-parts" : "once");
    byte[] body = inParts ? LARGE : bytes(10);
    write(builder(path, inParts).must(IF_NONE, true), body);
    refuses(builder(path, inParts).must(IF_NONE, true), bytes(body.length + 1));
    expect(same(read(path), body), "the first writer's bytes stay");
  }

  private void replacesOnlyWhatItHasSeen() throws IOException {
    Path path = new Path(root, "state");
    write(builder(path, false), bytes(10));
    String seen = ((EtagSource) fs.getFileStatus(path)).getEtag();
    byte[] next = bytes(20);
    write(builder(path, false).must(IF_MATCH, seen), next);
    refuses(builder(path, false).must(IF_MATCH, seen), bytes(30));
    expect(same(read(path), next), "the second writer saw an old version");
  }

  private void listsInPages() throws IOException {
    for (int each = 0; each < 25; each++) {
      fs.create(new Path(root, "many/" + each % 5 + "/file " + each)).close();
    }
    List<String> names = new ArrayList<>();
    RemoteIterator<LocatedFileStatus> found = fs.listFiles(new Path(root, "many"), true);
    while (found.hasNext()) {
      names.add(found.next().getPath().getName());
    }
    expect(names.size() == 25, "all of " + names);
    expect(fs.listStatus(new Path(root, "many")).length == 5, "five folders");
    expect(fs.delete(new Path(root, "many"), true), "a folder is deleted in pages");
    expect(!fs.exists(new Path(root, "many")), "and then it is gone");
  }

  private void renamesFoldersWithLargeFiles() throws IOException {
    Path from = new Path(root, "from");
    write(builder(new Path(from, "a/large"), true), LARGE);
    write(builder(new Path(from, "b/small +%ü"), false), bytes(1));
    expect(fs.rename(from, new Path(root, "to")), "a rename");
    expect(!fs.exists(from), "nothing stays");
    expect(same(read(new Path(root, "to/a/large")), LARGE), "the same bytes");
    expect(fs.exists(new Path(root, "to/b/small +%ü")), "every name");
  }

  /** One task commits, one is aborted; nothing is to be seen before the job commits. */
  private void commits(String name) throws Exception {
    Configuration own = new Configuration(configuration);
    own.set("fs.s3a.committer.name", name);
    own.set("fs.s3a.committer.staging.unique-filenames", "false");
    own.set("mapreduce.outputcommitter.factory.scheme.s3a",
        "org.apache.hadoop.fs.s3a.commit.S3ACommitterFactory");
    Path to = new Path(root, "by-" + name);
    own.set("mapreduce.output.fileoutputformat.outputdir", to.toString());
    TaskAttemptID first = new TaskAttemptID("20261126", 1, TaskType.MAP, 0, 0);
    TaskAttemptID second = new TaskAttemptID("20261126", 1, TaskType.MAP, 1, 0);
    JobContext job = new JobContextImpl(own, first.getJobID());
    PathOutputCommitter jobCommitter = committer(to, own, first);
    jobCommitter.setupJob(job);
    for (TaskAttemptID each : List.of(first, second)) {
      TaskAttemptContext task = new TaskAttemptContextImpl(own, each);
      PathOutputCommitter committer = committer(to, own, each);
      committer.setupTask(task);
      Path work = new Path(committer.getWorkPath(), "part-" + each.getTaskID().getId());
      try (FSDataOutputStream out = work.getFileSystem(own).create(work)) {
        out.write(LARGE);
      }
      expect(!fs.exists(new Path(to, work.getName())), name + ": a task's file shows too early");
      if (each == first) {
        expect(committer.needsTaskCommit(task), name + ": a task with a file needs a commit");
        committer.commitTask(task);
      } else {
        committer.abortTask(task);
      }
      expect(!fs.exists(new Path(to, work.getName())), name + ": a task's file shows too early");
    }
    jobCommitter.commitJob(job);
    List<String> names = new ArrayList<>();
    for (FileStatus each : fs.listStatus(to)) {
      names.add(each.getPath().getName());
    }
    expect(names.equals(List.of("_SUCCESS", "part-0")), name + " left " + names);
    expect(same(read(new Path(to, "part-0")), LARGE), name + ": the task's bytes");
  }

  private static PathOutputCommitter committer(Path to, Configuration own, TaskAttemptID attempt)
      throws IOException {
    return PathOutputCommitterFactory.getCommitterFactory(to, own)
        .createOutputCommitter(to, new TaskAttemptContextImpl(own, attempt));
  }

  @SuppressWarnings("rawtypes")
  private FSDataOutputStreamBuilder builder(Path path, boolean inParts) throws IOException {
    FSDataOutputStreamBuilder made = fs.createFile(path).overwrite(true).recursive();
    return inParts ? (FSDataOutputStreamBuilder) made.must("fs.s3a.create.multipart", true) : made;
  }

  @SuppressWarnings("rawtypes")
  private void write(Object builder, byte[] body) throws IOException {
    try (FSDataOutputStream out = ((FSDataOutputStreamBuilder) builder).build()) {
      out.write(body);
    }
  }

  private void refuses(Object builder, byte[] body) throws IOException {
    try {
      write(builder, body);
    } catch (RemoteFileChangedException expected) {
      return;
    }
    throw new AssertionError("a write whose condition does not hold was taken");
  }

  private byte[] read(Path path) throws IOException {
    try (FSDataInputStream in = fs.open(path)) {
      return in.readAllBytes();
    }
  }

  private static byte[] bytes(int count) {
    byte[] made = new byte[count];
    new Random(count).nextBytes(made);
    return made;
  }

  private static boolean same(byte[] one, byte[] other) {
    return java.util.Arrays.equals(one, other);
  }

  private static void expect(boolean holds, String claim) {
    if (!holds) {
      throw new AssertionError(claim);
    }
  }
}
