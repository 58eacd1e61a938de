/*
 * shared_memory ID QUEUE: look for a System V segment by its id and for a POSIX message queue by its name, and print
 * what was found in each. With "make" as ID, make both and print the id of the segment.
 */
#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/shm.h>

int main(int count, char **words)
{
    if (count != 3)
        return 2;
    if (!strcmp(words[1], "make")) {
        int segment = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
        char *memory = shmat(segment, NULL, 0);
        if (memory == (void *)-1)
            return 1;
        strcpy(memory, "segment-secret");
        mqd_t queue = mq_open(words[2], O_RDWR | O_CREAT, 0600, NULL);
        if (queue == (mqd_t)-1)
            return 1;
        printf("%d\n", segment);
        return 0;
    }
    char *memory = shmat(atoi(words[1]), NULL, SHM_RDONLY);
    printf("segment %s\n", memory == (void *)-1 ? strerror(errno) : memory);
    mqd_t queue = mq_open(words[2], O_RDONLY);
    printf("queue %s\n", queue == (mqd_t)-1 ? strerror(errno) : "opened");
    return 0;
}
